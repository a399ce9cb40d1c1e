package manifests

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"
)

// FuzzParse: whatever a file has, what is accepted of it has names and
// addresses that records can be made of, and is accepted again, equal, when it
// is written as JSON and as YAML.
func FuzzParse(f *testing.F) {
	samples, err := filepath.Glob("../../../../deploy/samples/*.yaml")
	if err != nil || samples == nil {
		f.Fatal(samples, err)
	}
	for _, path := range samples {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, false)
	}
	for _, text := range []string{webYAML, dbYAML, sliceYML, webJSON, "--- " + webJSON + " " + webJSON + "\n...\n{}", "a: &a [*a]", "%YAML 1.1\n---\n"} {
		f.Add([]byte(text), false)
	}
	f.Add([]byte(webJSON+"\n"+`{"apiVersion":"v1","kind":"NodeList","items":[{"metadata":{"name":"n"}}]}`), true)
	f.Fuzz(func(t *testing.T, data []byte, isJSON bool) {
		name := "f.yaml"
		if isJSON {
			name = "f.json"
		}
		modified := time.Unix(1700000000, 0)
		r := newReader()
		err := r.parse(name, data, modified)
		for _, line := range r.problems {
			if strings.Contains(line, "\n") {
				t.Errorf("problem of two lines: %q", line)
			}
		}
		if err != nil {
			if !strings.HasPrefix(err.Error(), name) {
				t.Errorf("error does not name the file: %v", err)
			}
			return
		}
		checkNames(t, &r.objects)

		var asJSON, asYAML []byte
		add := func(o any) {
			j, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			asJSON = append(append(asJSON, j...), '\n')
			y, err := yaml.Marshal(o)
			if err != nil {
				// Marshal parses the JSON as YAML, which knows no DEL and the
				// like in a text unless escaped.
				t.Skip("not to be written as YAML: ", err)
			}
			asYAML = append(append(asYAML, "---\n"...), y...)
		}
		for _, s := range r.objects.Services {
			add(s)
		}
		for _, s := range r.objects.EndpointSlices {
			add(s)
		}
		for _, n := range r.objects.Nodes {
			add(n)
		}
		again := func(name string, data []byte) {
			second := newReader()
			err := second.parse(name, data, modified.Add(time.Hour))
			if err != nil || second.problems != nil {
				t.Fatalf("%s again: %q, %v\n%s", name, second.problems, err, data)
			}
			if diff := cmp.Diff(r.objects, second.objects, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s again (-first +second):\n%s", name, diff)
			}
		}
		again("again.json", asJSON)
		again("again.yaml", asYAML)
	})
}

// checkNames checks names and addresses, by other means than the code does.
func checkNames(t *testing.T, o *Objects) {
	t.Helper()
	label := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	isLabel := func(what, s string) {
		t.Helper()
		if !label.MatchString(s) {
			t.Errorf("%s: %q accepted", what, s)
		}
	}
	isName := func(what, s string) {
		t.Helper()
		if len(s) > 253 {
			t.Errorf("%s: %d octets accepted", what, len(s))
		}
		for l := range strings.SplitSeq(s, ".") {
			isLabel(what, l)
		}
	}
	isAddr := func(what, s string) netip.Addr {
		t.Helper()
		a, err := netip.ParseAddr(s)
		if err != nil || a.Unmap() != a || a.WithZone("") != a || a.IsUnspecified() || a.IsLoopback() {
			t.Errorf("%s: %q accepted", what, s)
		}
		return a
	}
	seen := make(map[string]bool)
	unique := func(s string) {
		t.Helper()
		if seen[s] {
			t.Errorf("%s: twice", s)
		}
		seen[s] = true
	}
	for _, s := range o.Services {
		unique("Service " + s.Namespace + "/" + s.Name)
		isLabel("Service", s.Name)
		isLabel("namespace", s.Namespace)
		switch {
		case s.Spec.Type == "ExternalName":
			isName("externalName", strings.TrimSuffix(s.Spec.ExternalName, "."))
		case s.Spec.ClusterIP == "None":
		default:
			if len(s.Spec.ClusterIPs) == 0 {
				t.Errorf("Service %s: no cluster IP", s.Name)
			}
			families := make(map[bool]bool)
			for _, ip := range s.Spec.ClusterIPs {
				families[isAddr("clusterIPs", ip).Is4()] = true
			}
			if len(families) != len(s.Spec.ClusterIPs) || s.Spec.ClusterIPs[0] != s.Spec.ClusterIP {
				t.Errorf("Service %s: clusterIP %q, clusterIPs %q", s.Name, s.Spec.ClusterIP, s.Spec.ClusterIPs)
			}
		}
		for _, p := range s.Spec.Ports {
			if p.Name != "" {
				isLabel("port", p.Name)
			}
			if p.Protocol == "" || int32(uint16(p.Port)) != p.Port || p.Port == 0 {
				t.Errorf("Service %s: port %v", s.Name, p)
			}
		}
	}
	for _, s := range o.EndpointSlices {
		unique("EndpointSlice " + s.Namespace + "/" + s.Name)
		isName("EndpointSlice", s.Name)
		isLabel("namespace", s.Namespace)
		isLabel("service-name", s.Labels[discoveryv1.LabelServiceName])
		for _, p := range s.Ports {
			if *p.Name != "" {
				isLabel("port", *p.Name)
			}
			if *p.Protocol == "" || p.Port != nil && (int32(uint16(*p.Port)) != *p.Port || *p.Port == 0) {
				t.Errorf("EndpointSlice %s: port %v", s.Name, p)
			}
		}
		for _, e := range s.Endpoints {
			if e.Hostname != nil {
				isLabel("hostname", *e.Hostname)
			}
			for _, a := range e.Addresses {
				switch s.AddressType {
				case discoveryv1.AddressTypeFQDN:
					isName("FQDN", a)
				default:
					if isAddr("address", a).Is4() != (s.AddressType == discoveryv1.AddressTypeIPv4) {
						t.Errorf("EndpointSlice %s of type %s: %s", s.Name, s.AddressType, a)
					}
				}
			}
		}
	}
	for _, n := range o.Nodes {
		unique("Node " + n.Name)
		isName("Node", n.Name)
	}
}
