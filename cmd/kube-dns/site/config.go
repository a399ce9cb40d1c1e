package site

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"kubedns/cmd/kube-dns/app/options"
	"kubedns/pkg/dns/config"
)

// configuration is what /config answers. Fields are only ever added.
type configuration struct {
	// Values are the keys that a ConfigMap or directory can have, as they are
	// in force.
	Values []value `json:"values"`
	// Nameservers are where names outside the cluster domain are forwarded to.
	Nameservers Nameservers   `json:"nameservers"`
	InForce     updateInForce `json:"inForce"`
	// Refused is the last update that was, absent where none was.
	Refused *updateRefused `json:"refused,omitempty"`
	// Flags are all, in the order of their names; Environment likewise.
	Flags       []options.Flag `json:"flags"`
	Environment []options.Flag `json:"environment"`
}

// value is one key's.
type value struct {
	Key string `json:"key"` // "federations", "stubDomains", "upstreamNameservers"
	// Value is an object of name to domain, an object of domain to list of
	// servers, and a list of addresses; empty where it is the default.
	Value any    `json:"value"`
	From  Origin `json:"from"`

	Lines []string `json:"-"` // Value for people, a line each
	Note  string   `json:"-"`
}

// Origin is where a value comes from.
type Origin struct {
	// Kind is "flag", "file", "configMap", "resolvConf" or "default".
	Kind string `json:"kind"`
	// Name is "--federations", "/kube-dns-config/stubDomains",
	// "kube-system/kube-dns", "/etc/resolv.conf" or "".
	Name string `json:"name,omitempty"`
	// Version is the ConfigMap's resourceVersion, or a checksum of the
	// directory that the file is in.
	Version string `json:"version,omitempty"`
}

// String is o for people.
func (o Origin) String() string {
	switch o.Kind {
	case "flag":
		return "flag " + o.Name
	case "file":
		return "file " + o.Name
	case "configMap":
		return "ConfigMap " + o.Name + ", resourceVersion " + o.Version
	case "resolvConf":
		return o.Name
	}
	return o.Kind
}

// Nameservers are those in force and where they come from.
type Nameservers struct {
	Addrs []netip.AddrPort `json:"addrs"`
	// LeftOut are those that are this server itself.
	LeftOut []netip.AddrPort `json:"leftOut"`
	// From is zero if they come from the configuration.
	From  Origin    `json:"from"`
	Read  time.Time `json:"read"`
	Error string    `json:"error,omitempty"` // of /etc/resolv.conf
}

// updateInForce is where the configuration comes from.
type updateInForce struct {
	Origin  string `json:"origin"` // "flags", "directory /kube-dns-config", "ConfigMap kube-system/kube-dns", "default"
	Version string `json:"version,omitempty"`
	// Read is when it was; absent where nothing was read yet.
	Read     time.Time `json:"read,omitzero"`
	Warnings []string  `json:"warnings"`
	// Checked is how changes are noticed, for people.
	Checked string `json:"checked"`
}

// updateRefused is an update that was refused as a whole.
type updateRefused struct {
	Origin  string    `json:"origin"`
	Version string    `json:"version,omitempty"`
	Time    time.Time `json:"time"`
	Reason  string    `json:"reason"`
	// Stands reports that no update was accepted since: the ConfigMap or
	// directory still has what was refused.
	Stands bool `json:"stands"`
}

// configPage describes what is in force now.
func (s *Site) configPage() configuration {
	now := s.o.Configuration()
	inForce, refused := now.InForce, now.Refused
	c := configuration{
		Values: s.values(inForce), Nameservers: now.Nameservers,
		InForce: updateInForce{
			Origin: inForce.Origin, Version: inForce.Version, Read: inForce.Time, Warnings: inForce.Warnings, Checked: s.checked(),
		},
		Flags: s.o.Flags.Flags, Environment: s.o.Flags.Environment,
	}
	if !refused.Time.IsZero() {
		c.Refused = &updateRefused{
			Origin: refused.Origin, Version: refused.Version, Time: refused.Time, Reason: refused.Err.Error(),
			Stands: refused.Time.After(inForce.Time),
		}
	}
	if c.Nameservers.From == (Origin{}) {
		c.Nameservers.From = s.from(inForce, "upstreamNameservers", true)
	}
	if c.InForce.Warnings == nil {
		c.InForce.Warnings = []string{}
	}
	return c
}

// checked is how changes of the configuration are noticed.
func (s *Site) checked() string {
	switch {
	case s.o.Flags.ConfigDir != "":
		return fmt.Sprintf("on inotify events, and every %v", s.o.Flags.ConfigPeriod)
	case s.o.Flags.ConfigMap != "":
		return "watches the API server"
	}
	return "once, at the start"
}

func (s *Site) values(u config.Update) []value {
	federations := value{Key: "federations", Value: orEmpty(u.Config.Federations), From: s.from(u, "federations", len(u.Config.Federations) > 0)}
	for _, name := range slices.Sorted(maps.Keys(u.Config.Federations)) {
		federations.Lines = append(federations.Lines, name+"="+u.Config.Federations[name])
	}
	stubDomains := value{
		Key: "stubDomains", Value: orEmpty(u.Config.StubDomains), From: s.from(u, "stubDomains", len(u.Config.StubDomains) > 0),
		Note: "by the nanny, for dnsmasq; kube-dns itself forwards to upstreamNameservers only",
	}
	for _, domain := range slices.Sorted(maps.Keys(u.Config.StubDomains)) {
		line := domain + ":"
		for _, s := range u.Config.StubDomains[domain] {
			line += " " + s.String()
		}
		stubDomains.Lines = append(stubDomains.Lines, line)
	}
	upstream := value{
		Key: "upstreamNameservers", Value: append([]netip.AddrPort{}, u.Config.UpstreamNameservers...),
		From: s.from(u, "upstreamNameservers", len(u.Config.UpstreamNameservers) > 0),
	}
	for _, addr := range u.Config.UpstreamNameservers {
		upstream.Lines = append(upstream.Lines, addr.String())
	}
	return []value{federations, stubDomains, upstream}
}

// orEmpty makes an empty map of none, so that JSON has an object.
func orEmpty[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}

// from is where a key's value of an update comes from.
func (s *Site) from(u config.Update, key string, set bool) Origin {
	switch o := s.o.Flags; {
	case !set:
		return Origin{Kind: "default"}
	case o.ConfigDir != "":
		return Origin{Kind: "file", Name: filepath.Join(o.ConfigDir, key), Version: u.Version}
	case o.ConfigMap != "":
		return Origin{Kind: "configMap", Name: o.ConfigMapNamespace + "/" + o.ConfigMap, Version: u.Version}
	}
	return Origin{Kind: "flag", Name: "--" + key}
}

// flagTable is a table of flags and environment variables.
type flagTable struct {
	Caption string
	Flags   []options.Flag
}

// SetFlags are those that were given.
func (c configuration) SetFlags() flagTable {
	return flagTable{"Set on the command line or in the environment", c.flagsThat(true)}
}

// OtherFlags are those that were not.
func (c configuration) OtherFlags() flagTable { return flagTable{"Not set", c.flagsThat(false)} }

// flagsThat returns the flags, with their dashes, and the variables that are
// set, or those that are not.
func (c configuration) flagsThat(set bool) []options.Flag {
	var all []options.Flag
	for _, f := range c.Flags {
		f.Name = "--" + f.Name
		if f.Set == set {
			all = append(all, f)
		}
	}
	for _, f := range c.Environment {
		if f.Set == set {
			all = append(all, f)
		}
	}
	return all
}
