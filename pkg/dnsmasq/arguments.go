package dnsmasq

import (
	"io/fs"
	"net/netip"
	"strconv"
	"strings"

	"github.com/golang/glog"
)

// shortWithArgument has dnsmasq's options of one letter that take an argument.
const shortWithArgument = "rmpclsitugaxSCATHQIBFGOMXVUjPJWY2467803"

// arguments is what dnsmasq's own arguments, which are the operator's, and the
// configuration files that they name say about what the nanny depends on.
type arguments struct {
	foreground  bool // --keep-in-foreground or --no-daemon
	noResolv    bool
	noPoll      bool
	resolvFile  bool // --resolv-file
	serversFile bool // --servers-file
	user        bool
	pidFile     bool
	logFacility bool
	logQueries  bool
	fastRetry   bool
	port        uint16         // 53 where not given; 0 is no DNS at all
	listen      []netip.Addr   // --listen-address; empty: all
	servers     []domainServer // --server and --local, those that have an address
	local       []string       // domains that dnsmasq answers for itself: --server and --local without an address, --address
	files       []string       // configuration files, in the order read
	unread      []string       // sources of options that are not read, and why
}

// knownOptions are the long names of the options that arguments is about.
var knownOptions = []string{
	"address", "conf-dir", "conf-file", "fast-dns-retry", "keep-in-foreground", "listen-address", "local", "log-facility", "log-queries",
	"no-daemon", "no-poll", "no-resolv", "pid-file", "port", "resolv-file", "server", "servers-file", "user",
}

// parseArguments reads dnsmasq's argument list the way getopt_long does, but for
// abbreviated names of options, and the configuration files that it leads to. It
// does not judge them: dnsmasq does. root is the root directory.
func parseArguments(list []string, root fs.FS) arguments {
	p := argumentParser{a: arguments{port: 53}, files: confFiles{root: root}}
	for i := 0; i < len(list); i++ {
		arg := list[i]
		if arg == "--" {
			break
		}
		if long, ok := strings.CutPrefix(arg, "--"); ok {
			name, value, hasValue := strings.Cut(long, "=")
			if !hasValue && takesNext(name) && i+1 < len(list) {
				i++
				value = list[i]
			}
			p.argument(name, value)
			continue
		}
		if !strings.HasPrefix(arg, "-") {
			continue
		}
		for j := 1; j < len(arg); j++ {
			letter := arg[j : j+1]
			if !strings.Contains(shortWithArgument, letter) {
				p.argument(longName(letter), "")
				continue
			}
			value := arg[j+1:]
			if value == "" && i+1 < len(list) {
				i++
				value = list[i]
			}
			p.argument(longName(letter), value)
			break
		}
	}
	if p.confFile == nil {
		p.file(defaultConfFile)
	} else {
		p.file(*p.confFile)
	}
	return p.a
}

// logFiles logs what was read of configuration files, and what was not.
func (a *arguments) logFiles() {
	if len(a.files) > 0 {
		glog.Infof("nanny: read dnsmasq's configuration files %s; a change to them needs a restart of the nanny", strings.Join(a.files, ", "))
	}
	for _, what := range a.unread {
		glog.Warningf("nanny: not reading %s; these options have no effect on the nanny there: %s", what, strings.Join(knownOptions, ", "))
	}
}

// takesNext reports whether the long option's argument may be the next word; for
// the others that have one it comes behind "=". Options that do not matter here
// are not known.
func takesNext(long string) bool {
	switch long {
	case "servers-file", "port", "interface", "listen-address", "server", "local", "address", "log-facility", "conf-dir", "conf-script":
		return true
	}
	return false
}

// longName is the long name of an option of one letter, "" for those that do
// not matter here.
func longName(letter string) string {
	switch letter {
	case "k":
		return "keep-in-foreground"
	case "d":
		return "no-daemon"
	case "R":
		return "no-resolv"
	case "n":
		return "no-poll"
	case "r":
		return "resolv-file"
	case "u":
		return "user"
	case "x":
		return "pid-file"
	case "8":
		return "log-facility"
	case "q":
		return "log-queries"
	case "p":
		return "port"
	case "a":
		return "listen-address"
	case "S":
		return "server"
	case "A":
		return "address"
	case "C":
		return "conf-file"
	case "7":
		return "conf-dir"
	}
	return ""
}

type argumentParser struct {
	a        arguments
	files    confFiles
	confFile *string // the first --conf-file of the argument list
	filePort bool    // a file has set the port
}

// argument takes an option of the argument list.
func (p *argumentParser) argument(name, value string) {
	switch {
	case name == "conf-file" && p.confFile == nil:
		p.confFile = &value // dnsmasq reads it after all other arguments
	case name == "port" && p.filePort:
		// dnsmasq(8): the configuration file overrides the command line.
	default:
		p.option(name, value)
	}
}

// file takes the options of a configuration file.
func (p *argumentParser) file(path string) {
	options, err := p.files.read(path)
	switch {
	case err != nil:
		p.a.unread = append(p.a.unread, err.Error())
	case options != nil:
		p.a.files = append(p.a.files, path)
	}
	for _, o := range options {
		if o.name == "port" {
			p.filePort = true
		}
		p.option(o.name, o.value)
	}
}

// option takes one option by its long name.
func (p *argumentParser) option(name, value string) {
	a := &p.a
	switch name {
	case "keep-in-foreground", "no-daemon":
		a.foreground = true
	case "no-resolv":
		a.noResolv = true
	case "no-poll":
		a.noPoll = true
	case "resolv-file":
		a.resolvFile = true
	case "servers-file":
		a.serversFile = true
	case "user":
		a.user = true
	case "pid-file":
		a.pidFile = true
	case "log-facility":
		a.logFacility = true
	case "log-queries":
		a.logQueries = true
	case "fast-dns-retry":
		a.fastRetry = true
	case "port":
		if port, err := strconv.ParseUint(unhide(value), 10, 16); err == nil {
			a.port = uint16(port)
		}
	case "listen-address":
		for text := range strings.SplitSeq(value, ",") {
			if addr, err := netip.ParseAddr(unhide(text)); err == nil {
				a.listen = append(a.listen, addr)
			}
		}
	case "server", "local":
		value = unhide(value)
		a.servers = append(a.servers, parseServerArgument(value)...)
		if strings.HasSuffix(value, "/") {
			a.local = append(a.local, argumentDomains(value)...)
		}
	case "address":
		a.local = append(a.local, argumentDomains(unhide(value))...)
	case "conf-file":
		p.file(unhide(value))
	case "conf-dir":
		paths, err := p.files.list(value)
		if err != nil {
			a.unread = append(a.unread, err.Error())
		}
		for _, path := range paths {
			p.file(path)
		}
	case "conf-script":
		a.unread = append(a.unread, "the output of --conf-script="+unhide(value))
	}
}

// argumentDomains are the domains of "/domain/domain/…", lower case, without
// dots around them; "" and "#", which are all others, are not among them.
func argumentDomains(value string) []string {
	rest, ok := strings.CutPrefix(value, "/")
	end := strings.LastIndex(rest, "/")
	if !ok || end < 0 {
		return nil
	}
	var domains []string
	for domain := range strings.SplitSeq(rest[:end], "/") {
		if domain = strings.ToLower(strings.Trim(domain, ".")); domain != "" && domain != "#" {
			domains = append(domains, domain)
		}
	}
	return domains
}

// parseServerArgument reads "/domain/domain/192.0.2.1#53@source", where all but
// the address can be missing. Servers without an address, and those whose
// address is a name, are left out.
func parseServerArgument(value string) []domainServer {
	domains := []string{""}
	if rest, ok := strings.CutPrefix(value, "/"); ok {
		end := strings.LastIndex(rest, "/")
		if end < 0 {
			return nil
		}
		domains, value = strings.Split(rest[:end], "/"), rest[end+1:]
	}
	value, _, _ = strings.Cut(value, "@")
	host, port, found := strings.Cut(value, "#")
	number := uint64(53)
	if found {
		var err error
		if number, err = strconv.ParseUint(port, 10, 16); err != nil {
			return nil
		}
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	var servers []domainServer
	for _, domain := range domains {
		domain = strings.ToLower(strings.Trim(domain, "."))
		servers = append(servers, domainServer{domain, netip.AddrPortFrom(addr, uint16(number))})
	}
	return servers
}

// probeAddr is an address at which this host can query dnsmasq. It is not valid
// when dnsmasq does not serve DNS.
func (a *arguments) probeAddr() netip.AddrPort {
	if a.port == 0 {
		return netip.AddrPort{}
	}
	addr := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if len(a.listen) > 0 {
		addr = a.listen[0]
	}
	if addr.IsUnspecified() {
		if addr.Is6() {
			addr = netip.IPv6Loopback()
		} else {
			addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
	}
	return netip.AddrPortFrom(addr, a.port)
}

// isOwn reports whether dnsmasq itself answers at addr, local being the addresses
// of this machine.
func (a *arguments) isOwn(addr netip.AddrPort, local []netip.Addr) bool {
	if addr.Port() != a.port {
		return false
	}
	ip := addr.Addr().Unmap().WithZone("")
	all := len(a.listen) == 0
	for _, listen := range a.listen {
		switch {
		case listen.WithZone("") == ip:
			return true
		case listen.IsUnspecified():
			all = true
		}
	}
	if !all {
		return false
	}
	if ip.IsLoopback() {
		return true
	}
	for _, l := range local {
		if l.WithZone("") == ip {
			return true
		}
	}
	return false
}

// clusterDomains are the domains that the arguments forward to kube-dns, at
// kubedns; "cluster.local" when there are none.
func (a *arguments) clusterDomains(kubedns netip.AddrPort) []string {
	var domains []string
	for _, s := range a.servers {
		if s.addr == kubedns && s.domain != "" && !strings.HasSuffix(s.domain, ".arpa") {
			domains = append(domains, s.domain)
		}
	}
	if domains == nil {
		return []string{"cluster.local"}
	}
	return domains
}
