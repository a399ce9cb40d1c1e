package explain

import (
	"fmt"
	"strings"

	"github.com/miekg/dns"
)

// dnsmasq enters what the dnsmasq in front does with the question, with the
// arguments that the manifests give it: the zone and the reverse zones are
// kube-dns's, negative answers are not cached.
func (x *explanation) dnsmasq() {
	d := &x.out.Dnsmasq
	d.Servers = []string{}
	domain, servers := x.stubDomain(x.name)
	if x.inZone && x.up.asked != nil {
		if d, _ := x.stubDomain(x.up.asked.Name); d != "" {
			x.note("%s is in the stub domain %s, which dnsmasq alone knows: kube-dns asks its own upstream nameservers for it", x.up.asked.Name, d)
		}
	}
	switch own := x.ownDomain(); {
	case domain != "" && len(domain) >= len(own):
		d.Asks, d.Domain, d.Servers = "stub domain", domain, servers
		d.Note = fmt.Sprintf("dnsmasq asks the servers of the stub domain %s, and not kube-dns", domain)
	case own != "":
		d.Asks, d.Servers = "kube-dns", []string{"kube-dns"}
		d.Note = "dnsmasq asks kube-dns"
	default:
		d.Asks = "upstream"
		if c := x.o.Config(); c != nil {
			for _, s := range c.UpstreamNameservers {
				d.Servers = append(d.Servers, s.String())
			}
		}
		who := strings.Join(d.Servers, ", ")
		if who == "" {
			who = "those of its /etc/resolv.conf"
		}
		d.Note = fmt.Sprintf("dnsmasq asks the upstream nameservers itself (%s), and not kube-dns", who)
	}
	d.CachedSeconds = x.cachedSeconds()
	if d.Asks != "kube-dns" {
		d.Note += "; what is shown here is what kube-dns would answer"
		return
	}
	switch {
	case d.CachedSeconds > 0:
		d.Note += fmt.Sprintf(", and answers from its cache for up to %d s", d.CachedSeconds)
	case x.out.Resolves:
		d.Note += ", and keeps no answer of this type"
	default:
		d.Note += ", and keeps no negative answer (--no-negcache)"
	}
}

// stubDomain is the longest stub domain that a name is in.
func (x *explanation) stubDomain(name string) (domain string, servers []string) {
	c := x.o.Config()
	if c == nil {
		return "", nil
	}
	name = "." + strings.ToLower(strings.TrimSuffix(name, "."))
	for d, list := range c.StubDomains {
		if strings.HasSuffix(name, "."+d) && len(d) > len(domain) {
			domain, servers = d, nil
			for _, s := range list {
				servers = append(servers, s.String())
			}
		}
	}
	return domain, servers
}

// ownDomain is the domain for which dnsmasq asks kube-dns and that the name is
// in, without the dot at its end; "" for none.
func (x *explanation) ownDomain() string {
	if x.inZone {
		return strings.TrimSuffix(x.o.Tree.Zone(), ".")
	}
	return reverseZone(x.name)
}

// cachedSeconds is the least TTL of an answer of the types that dnsmasq
// caches.
func (x *explanation) cachedSeconds() uint32 {
	if !x.out.Resolves {
		return 0
	}
	switch x.question.Qtype {
	case dns.TypeA, dns.TypeAAAA, dns.TypeCNAME, dns.TypePTR, dns.TypeSRV:
	default:
		return 0
	}
	least := ^uint32(0)
	for _, rr := range x.reply.Answer {
		least = min(least, rr.Header().Ttl)
	}
	return least
}

// advice is what to do about a name that does not resolve.
func advice(e *Explanation, zone string) string {
	near := ""
	if len(e.Near) > 0 {
		near = " Perhaps " + e.Near[0].Name + " is meant."
	}
	service := func(verb string) string {
		if e.Service == nil {
			return verb
		}
		return fmt.Sprintf("%s (kubectl -n %s get service,endpointslices -l kubernetes.io/service-name=%s)", verb, e.Service.Namespace, e.Service.Name)
	}
	switch e.Reason {
	case NoType:
		return "Ask for a type that it has; a client that asks for A and AAAA is content with one of them." + near
	case NoNamespace:
		return "Look for the namespace's spelling, and whether the Service is in another (kubectl get services -A)." + near
	case NoService:
		return "Look for the Service's spelling, and whether it is in another namespace (kubectl get services -A)." + near
	case NoAddress:
		return service("Look at the Service")
	case NoReadyEndpoint, EndpointNotReady:
		return service("Look why the Pods are not ready; or set publishNotReadyAddresses in the Service")
	case NoEndpoint:
		return service("Compare the Service's selector with the Pods' labels")
	case NoSuchEndpoint:
		return service("An endpoint's name is its Pod's hostname, where the Pod's subdomain is the Service's name: look at both") + near
	case BelowService:
		return "Ask for the Service's own name; only a headless Service's endpoints have names." + near
	case NoPort, NoProtocol:
		return "Ask for a port that the Service has: _name._protocol in front of the Service's name, where ports have names." + near
	case NoMatch:
		return "Ask for a name without an asterisk."
	case NotPodAddress:
		return "Write the Pod's address with dashes, as in 10-244-0-7."
	case NoName:
		return "Names of Services are service.namespace.svc." + zone + near
	case TargetNoName, TargetNoType:
		return "Look at the Service's externalName, and ask for it alone."
	case Loop:
		return "Take one of the ExternalName Services out of the loop."
	case NoTopology:
		return "Look at the Nodes' labels topology.kubernetes.io/zone and /region."
	case UpstreamNoName, UpstreamNoType:
		if e.Dnsmasq.Asks == "stub domain" {
			return "Pods' questions go to the stub domain's servers: ask those." + near
		}
		return "Look for the name's spelling; a name of the cluster ends in its domain." + near
	case UpstreamSilent, UpstreamRefuses:
		if e.Dnsmasq.Asks == "stub domain" {
			return "Pods' questions go to the stub domain's servers: ask those. kube-dns's own upstream nameservers do not answer."
		}
		return "Ask the nameserver from the kube-dns Pod's network; look at upstreamNameservers in the ConfigMap, at the node's /etc/resolv.conf and at NetworkPolicies." + near
	case NoNameservers:
		return "Set upstreamNameservers in the ConfigMap, or --nameservers."
	case Overloaded:
		return "Look whether the upstream nameservers answer; --max-forwarded is the bound."
	case Incomplete:
		return "Look at /readiness and the log: the API server is not reached, or the rights are missing."
	}
	return "Ask again."
}
