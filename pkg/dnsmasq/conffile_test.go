package dnsmasq

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kubedns/pkg/dnsmasq/dnsmasqtest"
	"kubedns/pkg/freeport"
)

// TestConfDirAsDnsmasq compares which files of a directory are read with what
// dnsmasq does: a file that it reads has an option that it refuses.
func TestConfDirAsDnsmasq(t *testing.T) {
	t.Parallel()
	path := dnsmasqtest.Path(t)
	names := []string{"a.conf", "b.bak", "x.b.bak", ".conf", ".hidden.conf", "editor.conf~", "#auto.conf#", "#half.conf", "conf", "UPPER.CONF", "a b.conf"}
	for _, suffixes := range []string{"", ",", ",*", ",*.conf", ",.bak", ",*.conf,.conf", ",*.bak,*.conf,b.bak", ",*,.conf,,", ",conf", ",*.nonesuch"} {
		t.Run(strings.ReplaceAll("suffixes"+suffixes, ",", " "), func(t *testing.T) {
			t.Parallel()
			for _, name := range names {
				dir := t.TempDir()
				writeFile(t, filepath.Join(dir, name), "no-such-option\n")
				mkdir(t, filepath.Join(dir, "folder.conf"))
				out, _ := exec.Command(path, "--test", "--conf-file=/dev/null", "--conf-dir="+dir+suffixes).CombinedOutput()
				files := parseArguments([]string{"--conf-file=/dev/null", "--conf-dir=" + dir + suffixes}, os.DirFS("/")).files
				var want []string
				if strings.Contains(string(out), "bad option at line 1 of "+dir) {
					want = []string{filepath.Join(dir, name)}
				} else if !strings.Contains(string(out), "syntax check OK") {
					t.Fatalf("%s: dnsmasq says %s", name, out)
				}
				if !slices.Equal(files, want) {
					t.Errorf("%q: read %q, dnsmasq reads %q", name, files, want)
				}
			}
		})
	}
}

// TestConfLineAsDnsmasq compares how a line is read with what dnsmasq does: it
// refuses a second port in another file when it has found one in the line.
func TestConfLineAsDnsmasq(t *testing.T) {
	t.Parallel()
	path := dnsmasqtest.Path(t)
	for _, test := range []struct{ line, port string }{
		{"port=5353", "5353"},
		{"  port\t= \"5353\"  # comment", "5353"},
		{"\"port\"=53\"53\"", "5353"},
		{"port=5353\r", "5353"},
		{"# port=5353", ""},
		{"no-poll # port=5353", ""},
		{"\t#port=5353", ""},
		{"no-resolv", ""},
		{"domain=\"a # b\"", ""},
		{"", ""},
	} {
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, "a"), test.line+"\n")
		a := parseArguments([]string{"--conf-file=" + filepath.Join(dir, "a")}, os.DirFS("/"))
		if want := test.port == "5353"; (a.port == 5353) != want {
			t.Errorf("%q: port %d", test.line, a.port)
		}
		writeFile(t, filepath.Join(dir, "b"), "port=1\n")
		out, _ := exec.Command(path, "--test", "--conf-file=/dev/null", "--conf-dir="+dir).CombinedOutput()
		if got := strings.Contains(string(out), "illegal repeated keyword at line 1 of "+dir); got != (test.port != "") {
			t.Errorf("%q: dnsmasq says %s", test.line, out)
		}
	}
}

// TestConfigurationFiles has dnsmasq's port, and what else the nanny depends on,
// in files of a directory. The files count as options of the list do.
func TestConfigurationFiles(t *testing.T) {
	t.Parallel()
	a := startUpstream(t, "192.0.2.1")
	nt := startNanny(t, nil, func(nt *nannyTest) {
		folder := filepath.Join(filepath.Dir(nt.dir), "dnsmasq.d")
		mkdir(t, folder)
		nt.addr = freeport.Addr(t)
		_, port, _ := net.SplitHostPort(nt.addr)
		writeFile(t, filepath.Join(folder, "port.conf"), "port="+port+" # not that of the list\nfast-dns-retry\n")
		writeFile(t, filepath.Join(folder, "upstream.conf"), "no-resolv\nserver=/own.example/"+hashAddr(a.addr)+"\n")
		writeFile(t, filepath.Join(folder, "upstream.conf.bak"), "port=1\n")
		nt.opts.Args = append(nt.opts.Args, "--conf-dir="+folder+",*.conf")
		nt.writeJSON(t, "upstreamNameservers", []string{nt.addr}) // dnsmasq itself
	})
	if !nt.super.wasHeard() {
		t.Error("the nanny does not know where dnsmasq listens")
	}
	if nt.reload.resolv != nil {
		t.Error("resolv.conf counts, although --no-resolv is set")
	}
	// dnsmasq's own address is left out: asked, it would ask itself.
	if got := nt.servers(t); got != a.addr {
		t.Errorf("dnsmasq has the servers %q, want %q", got, a.addr)
	}
	nt.awaitLookup(t, "own.example", "192.0.2.1")
	if args := nt.super.arguments(); slices.Contains(args, retryArgument) || slices.Contains(args, "--no-resolv") {
		t.Errorf("dnsmasq got what its files have: %q", args)
	}
}
