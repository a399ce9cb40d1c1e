package dnsmasq

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubedns/pkg/dns/config"
)

func TestOpenStateDir(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	path := filepath.Join(t.TempDir(), "a", "state")
	first, err := openStateDir(path)
	if err != nil || first.path != path {
		t.Fatalf("openStateDir = %v, %v", first, err)
	}
	second, err := openStateDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if second.path == path || filepath.Dir(second.path) != os.Getenv("TMPDIR") {
		t.Errorf("a second nanny has the folder %s", second.path)
	}
	for _, s := range []*stateDir{first, second} {
		if err := s.writeServers("text"); err != nil {
			t.Error(err)
		}
		for path, want := range map[string]fs.FileMode{s.path: fs.ModeDir | 0o755, s.serversFile(): 0o644} {
			if info, err := os.Stat(path); err != nil || info.Mode() != want {
				t.Errorf("%s: %v, %v, want mode %v: dnsmasq's user has to read it", path, info.Mode(), err, want)
			}
		}
		s.close()
	}
	if _, err := os.Stat(second.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary folder is still there: %v", err)
	}
	third, err := openStateDir(path)
	if err != nil || third.path != path {
		t.Errorf("after the first nanny's end: %v, %v", third, err)
	} else {
		third.close()
	}
	names, _ := os.ReadDir(path)
	for _, entry := range names {
		if entry.Name() != "lock" && entry.Name() != "servers" {
			t.Errorf("%s was left behind", entry.Name())
		}
	}

	t.Chdir(path)
	relative, err := openStateDir("../state")
	if err != nil {
		t.Fatal(err)
	}
	if relative.path != path {
		t.Errorf("a relative path stays %s, which is another folder for dnsmasq", relative.path)
	}
	relative.close()

	gone := stateDir{path: filepath.Join(path, "gone")}
	if err, again := gone.writeServers("text"), gone.writeServers("text"); err == nil || again == nil || err.Error() != again.Error() {
		t.Errorf("the same error twice: %v, then %v", err, again)
	}

	t.Setenv("TMPDIR", "/dev/null")
	if s, err := openStateDir("/dev/null/state"); err == nil {
		t.Errorf("openStateDir = %s without a folder to write to", s.path)
	}
}

func TestLastGood(t *testing.T) {
	s, err := openStateDir(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if _, err := s.loadLastGood(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("loadLastGood of nothing: %v", err)
	}
	cfg, _, err := config.Parse(map[string]string{"stubDomains": `{"a.example":["ns.example.org:5353","[2001:db8::1]:53"]}`, "upstreamNameservers": `["192.0.2.1"]`, "federations": "a=b"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.saveLastGood(cfg); err != nil {
		t.Fatal(err)
	}
	if got, err := s.loadLastGood(); err != nil || !got.Equal(cfg) {
		t.Errorf("loadLastGood = %v, %v, want %v", got, err, cfg)
	}
	for _, text := range []string{"", "{", "[]", `{"stubDomains":"{"}`} {
		writeFile(t, s.lastGoodFile(), text)
		if cfg, err := s.loadLastGood(); err == nil || !strings.Contains(err.Error(), "parsing "+s.lastGoodFile()) {
			t.Errorf("loadLastGood of %q = %v, %v", text, cfg, err)
		}
	}
}
