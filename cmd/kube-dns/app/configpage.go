package app

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
	Nameservers nameservers   `json:"nameservers"`
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
	From  origin `json:"from"`

	Lines []string `json:"-"` // Value for people, a line each
	Note  string   `json:"-"`
}

// origin is where a value comes from.
type origin struct {
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
func (o origin) String() string {
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

// nameservers are those in force and where they come from.
type nameservers struct {
	Addrs []netip.AddrPort `json:"addrs"`
	// LeftOut are those that are this server itself.
	LeftOut []netip.AddrPort `json:"leftOut"`
	From    origin           `json:"from"`
	Read    time.Time        `json:"read"`
	Error   string           `json:"error,omitempty"` // of /etc/resolv.conf
}

// updateInForce is where the configuration comes from.
type updateInForce struct {
	Origin  string `json:"origin"` // "flags", "directory /kube-dns-config", "ConfigMap kube-system/kube-dns", "default"
	Version string `json:"version,omitempty"`
	// Read is when it was; absent where nothing was read yet.
	Read     time.Time `json:"read,omitzero"`
	Warnings []string  `json:"warnings"`
	// Checked tells how changes come to be known.
	Checked string `json:"checked"`
}

// updateRefused is an update that was refused as a whole.
type updateRefused struct {
	Origin  string    `json:"origin"`
	Version string    `json:"version,omitempty"`
	Time    time.Time `json:"time"`
	Reason  string    `json:"reason"`
	// Stands tells that nothing was put into force since: what is in the
	// ConfigMap or directory is still what was refused.
	Stands bool `json:"stands"`
}

// configuration describes what is in force now.
func (a *app) configuration() configuration {
	c := configuration{Flags: a.options.Flags, Environment: a.options.Environment}
	a.reload.last(func(inForce, refused config.Update) {
		c.InForce = updateInForce{
			Origin: inForce.Origin, Version: inForce.Version, Read: inForce.Time, Warnings: inForce.Warnings, Checked: a.checked(),
		}
		if !refused.Time.IsZero() {
			c.Refused = &updateRefused{
				Origin: refused.Origin, Version: refused.Version, Time: refused.Time, Reason: refused.Err.Error(),
				Stands: refused.Time.After(inForce.Time),
			}
		}
		c.Nameservers = *a.nameservers.Load()
		c.Values = a.values(inForce)
		if c.Nameservers.From == (origin{}) {
			c.Nameservers.From = a.from(inForce, "upstreamNameservers", true)
		}
	})
	if c.InForce.Warnings == nil {
		c.InForce.Warnings = []string{}
	}
	return c
}

// checked says how changes of the configuration come to be known.
func (a *app) checked() string {
	switch {
	case a.options.ConfigDir != "":
		return fmt.Sprintf("when inotify tells of a change, and each %v", a.options.ConfigPeriod)
	case a.options.ConfigMap != "":
		return "the API server tells of changes"
	}
	return "it does not change while kube-dns runs"
}

func (a *app) values(u config.Update) []value {
	federations := value{Key: "federations", Value: orEmpty(u.Config.Federations), From: a.from(u, "federations", len(u.Config.Federations) > 0)}
	for _, name := range slices.Sorted(maps.Keys(u.Config.Federations)) {
		federations.Lines = append(federations.Lines, name+"="+u.Config.Federations[name])
	}
	stubDomains := value{
		Key: "stubDomains", Value: orEmpty(u.Config.StubDomains), From: a.from(u, "stubDomains", len(u.Config.StubDomains) > 0),
		Note: "for dnsmasq, whose nanny reads them too; kube-dns itself forwards by upstreamNameservers alone",
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
		From: a.from(u, "upstreamNameservers", len(u.Config.UpstreamNameservers) > 0),
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
func (a *app) from(u config.Update, key string, set bool) origin {
	switch o := a.options; {
	case !set:
		return origin{Kind: "default"}
	case o.ConfigDir != "":
		return origin{Kind: "file", Name: filepath.Join(o.ConfigDir, key), Version: u.Version}
	case o.ConfigMap != "":
		return origin{Kind: "configMap", Name: o.ConfigMapNamespace + "/" + o.ConfigMap, Version: u.Version}
	}
	return origin{Kind: "flag", Name: "--" + key}
}

const configTemplate = `{{define "flags"}}<div class="scroll" role="region" aria-label="{{.Caption}}" tabindex="0"><table>
<caption>{{.Caption}}</caption>
<thead><tr><th scope="col">Name</th><th scope="col">Value</th><th scope="col">Default</th></tr></thead>
<tbody>{{range .Flags}}
<tr><th scope="row" class="name">{{.Name}}</th><td class="name">{{.Value}}</td><td class="name">{{.Default}}</td></tr>{{end}}
</tbody></table></div>
{{end}}

{{define "body"}}
{{with .Refused}}{{if .Stands}}<p class="error" role="alert">The last update was refused, and what was in force stays: {{.Reason}}</p>{{end}}{{end}}
<section aria-labelledby="in-force"><h2 id="in-force">In force</h2>
<dl>
<dt>From</dt><dd>{{.InForce.Origin}}</dd>
{{with .InForce.Version}}<dt>Version</dt><dd class="name">{{.}}</dd>{{end}}
<dt>Read</dt><dd>{{ago .InForce.Read}}</dd>
<dt>Looked at</dt><dd>{{.InForce.Checked}}</dd>
{{range .InForce.Warnings}}<dt>Warning</dt><dd><span class="warn">{{.}}</span></dd>{{end}}
</dl>
{{range .Values}}<h3 class="name">{{.Key}}</h3>
<dl>
<dt>Value</dt><dd>{{range .Lines}}<div class="name">{{.}}</div>{{else}}<span class="muted">none</span>{{end}}</dd>
<dt>From</dt><dd>{{.From}}</dd>
{{with .Note}}<dt>Used</dt><dd>{{.}}</dd>{{end}}
</dl>
{{end}}</section>
<section aria-labelledby="nameservers"><h2 id="nameservers">Nameservers that other names are forwarded to</h2>
<dl>
<dt>Addresses</dt><dd>{{range .Nameservers.Addrs}}<div class="name">{{.}}</div>{{else}}<span class="bad">none: other names are answered SERVFAIL</span>{{end}}</dd>
<dt>From</dt><dd>{{.Nameservers.From}}</dd>
<dt>Read</dt><dd>{{ago .Nameservers.Read}}</dd>
{{range .Nameservers.LeftOut}}<dt>Left out</dt><dd><span class="name">{{.}}</span>, which is this server itself</dd>{{end}}
{{with .Nameservers.Error}}<dt>Error</dt><dd><span class="bad">{{.}}</span></dd>{{end}}
</dl></section>
<section aria-labelledby="refused"><h2 id="refused">Last update that was refused</h2>
{{with .Refused}}<dl>
<dt>Reason</dt><dd>{{.Reason}}</dd>
<dt>From</dt><dd>{{.Origin}}</dd>
{{with .Version}}<dt>Version</dt><dd class="name">{{.}}</dd>{{end}}
<dt>When</dt><dd>{{ago .Time}}</dd>
<dt>Now</dt><dd>{{if .Stands}}<span class="bad">still what is there</span>{{else}}<span class="ok">an update after it is in force</span>{{end}}</dd>
</dl>{{else}}<p>None since the start.</p>{{end}}</section>
<section aria-labelledby="flags"><h2 id="flags">Flags and environment</h2>
{{template "flags" .SetFlags}}
<details><summary>All others, with their defaults</summary>
{{template "flags" .OtherFlags}}
</details></section>
{{end}}`

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

// flagsThat returns those that are set or not, with the dashes of flags.
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
