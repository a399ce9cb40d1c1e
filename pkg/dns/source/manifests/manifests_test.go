package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMain(m *testing.M) {
	// glog's package starts it, for good.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}

// write makes a directory of files.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		writeFile(t, filepath.Join(dir, name), text)
	}
	return dir
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// summary has a line for each object, in order.
func summary(o *Objects) []string {
	if o == nil {
		return nil
	}
	var lines []string
	for _, s := range o.Services {
		line := fmt.Sprintf("Service %s/%s %s", s.Namespace, s.Name, s.Spec.Type)
		if s.Spec.ClusterIP != "" {
			line += " " + strings.Join(s.Spec.ClusterIPs, ",")
		}
		if s.Spec.ExternalName != "" {
			line += " " + s.Spec.ExternalName
		}
		for _, p := range s.Spec.Ports {
			line += fmt.Sprintf(" %s:%d/%s", p.Name, p.Port, p.Protocol)
		}
		lines = append(lines, line)
	}
	for _, s := range o.EndpointSlices {
		line := fmt.Sprintf("EndpointSlice %s/%s of %s %s", s.Namespace, s.Name, s.Labels[discoveryv1.LabelServiceName], s.AddressType)
		for _, p := range s.Ports {
			port := "*"
			if p.Port != nil {
				port = fmt.Sprint(*p.Port)
			}
			line += fmt.Sprintf(" %s:%s/%s", *p.Name, port, *p.Protocol)
		}
		for _, e := range s.Endpoints {
			line += " " + strings.Join(e.Addresses, ",")
			if e.Hostname != nil {
				line += "=" + *e.Hostname
			}
		}
		lines = append(lines, line)
	}
	for _, n := range o.Nodes {
		lines = append(lines, "Node "+n.Name)
	}
	return lines
}

const (
	webYAML  = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 192.0.2.7, ports: [{name: http, port: 80}]}\n"
	webLine  = "Service default/web ClusterIP 192.0.2.7 http:80/TCP"
	dbYAML   = "apiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: shop}\nspec: {clusterIP: None}\n"
	dbLine   = "Service shop/db ClusterIP None"
	sliceYML = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: db-1, namespace: shop, labels: {kubernetes.io/service-name: db}}\n" +
		"addressType: IPv4\nports: [{port: 5432}]\nendpoints: [{addresses: [192.0.2.31], hostname: db-0}]\n"
	sliceLine = "EndpointSlice shop/db-1 of db IPv4 :5432/TCP 192.0.2.31=db-0"
	webJSON   = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"clusterIP":"192.0.2.7","ports":[{"name":"http","port":80}]}}`
)

func TestRead(t *testing.T) {
	for _, tc := range []struct {
		name     string
		files    map[string]string
		want     []string
		problems []string
	}{
		{name: "nothing"},
		{
			name:  "one document",
			files: map[string]string{"a.yaml": webYAML},
			want:  []string{webLine},
		},
		{
			name:  "in the order of names, three endings",
			files: map[string]string{"c.json": webJSON, "b.yml": dbYAML, "a.yaml": sliceYML},
			want:  []string{dbLine, webLine, sliceLine},
		},
		{
			name:  "other files",
			files: map[string]string{".a.yaml": webYAML, "a.yaml~": webYAML, "a.yaml.swp": "\x00", "README.md": "# x", "YAML": webYAML},
		},
		{
			name:  "several documents",
			files: map[string]string{"a.yaml": "%YAML 1.1\n# first\n---\n" + webYAML + "--- # second\n" + dbYAML + "...\n" + sliceYML + "---\n---\n# none\n"},
			want:  []string{webLine, dbLine, sliceLine},
		},
		{
			name:  "document on the separator's line",
			files: map[string]string{"a.yaml": "--- " + webJSON + "\n---\n" + dbYAML},
			want:  []string{webLine, dbLine},
		},
		{
			name:  "carriage returns and a byte order mark",
			files: map[string]string{"a.yaml": "\ufeff" + strings.ReplaceAll(webYAML+"---\n"+dbYAML, "\n", "\r\n"), "b.json": "\ufeff{}"},
			want:  []string{webLine, dbLine},
			problems: []string{
				"b.json: object (no name): skipped: no apiVersion or no kind",
			},
		},
		{
			name:  "separators that are none",
			files: map[string]string{"a.yaml": webYAML + "  # ---\nstatus:\n  x: |\n    ---\n    ...\n"},
			want:  []string{webLine},
			problems: []string{
				`a.yaml: Service web: ignored: unknown field "status.x"`,
			},
		},
		{
			name:  "JSON values in sequence",
			files: map[string]string{"a.json": webJSON + "\n" + strings.ReplaceAll(webJSON, "web", "api") + "\n"},
			want:  []string{webLine, strings.ReplaceAll(webLine, "web", "api")},
		},
		{
			name: "JSON values in sequence, called YAML",
			files: map[string]string{"a.yaml": "# two\n--- " + webJSON + "\n\n" + strings.ReplaceAll(webJSON, `"name":"web"`, `"name":"a_b"`) +
				"\n---\n" + dbYAML + "---\n{kind: x} # flow\n...\n"},
			want: []string{webLine, dbLine},
			problems: []string{
				`a.yaml, document 2 from line 4: Service default/a_b: skipped: metadata.name: "a_b" is not a DNS label (RFC 1123: a-z, 0-9 and - within, at most 63 octets)`,
				"a.yaml, document 4 from line 10: x (no name): skipped: no apiVersion or no kind",
			},
		},
		{
			name: "kind List",
			files: map[string]string{"a.json": `{"apiVersion":"v1","kind":"List","items":[` + webJSON + `,
				{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"}},
				{"apiVersion":"v1","kind":"List","items":[` + webJSON + `]}, {}]}`},
			want: []string{webLine},
			problems: []string{
				"a.json, item 2: Secret s: skipped: v1 Secret is not read",
				"a.json, item 3: List: skipped: a list within a list",
				"a.json, item 4: object (no name): skipped: no apiVersion or no kind",
			},
		},
		{
			name: "typed lists, whose items have no kind",
			files: map[string]string{
				"a.yaml": "apiVersion: v1\nkind: ServiceList\nmetadata: {resourceVersion: '7'}\nitems:\n- metadata: {name: web}\n  spec: {clusterIP: 192.0.2.7}\n- " + webJSON,
				"b.yaml": "apiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nitems:\n- metadata: {name: s, labels: {kubernetes.io/service-name: web}}\n  addressType: IPv6\n",
				"c.yaml": "apiVersion: v1\nkind: NodeList\nitems:\n- metadata: {name: node-a.example.org}\n  status: {capacity: {cpu: [none]}}\n",
			},
			want: []string{"Service default/web ClusterIP 192.0.2.7", "EndpointSlice default/s of web IPv6", "Node node-a.example.org"},
			problems: []string{
				"a.yaml, item 2: Service default/web: skipped: already in a.yaml, item 1",
			},
		},
		{
			name: "other kinds and versions",
			files: map[string]string{"a.yaml": strings.Join([]string{
				"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\n",
				"apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: web}\n",
				"apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nmetadata: {name: web}\n",
				"apiVersion: v1\nkind: Endpoints\nmetadata: {name: web}\n",
				"apiVersion: v1\nkind: EndpointsList\nitems: []\n",
				"kind: Service\nmetadata: {name: web}\n",
				"replicas: 3\n",
			}, "---\n")},
			problems: []string{
				"a.yaml: Deployment shop/web: skipped: apps/v1 Deployment is not read",
				"a.yaml, document 2 from line 4: Service web: skipped: serving.knative.dev/v1 Service is not read",
				"a.yaml, document 3 from line 8: EndpointSlice web: skipped: apiVersion discovery.k8s.io/v1beta1 is not read, only discovery.k8s.io/v1",
				"a.yaml, document 4 from line 12: Endpoints web: skipped: Endpoints are not read, only EndpointSlices of discovery.k8s.io/v1",
				"a.yaml, document 5 from line 16: EndpointsList (no name): skipped: Endpoints are not read, only EndpointSlices of discovery.k8s.io/v1",
				"a.yaml, document 6 from line 20: Service web: skipped: no apiVersion or no kind",
				"a.yaml, document 7 from line 23: object (no name): skipped: no apiVersion or no kind",
			},
		},
		{
			name:  "duplicates: the first that is valid stays",
			files: map[string]string{"a.yaml": strings.Replace(webYAML, "192.0.2.7", "192.0.2", 1), "b.yaml": webYAML, "c.yaml": strings.Replace(webYAML, "192.0.2.7", "192.0.2.8", 1)},
			want:  []string{webLine},
			problems: []string{
				"a.yaml: Service default/web: skipped: spec.clusterIPs: 192.0.2 is not an IP address",
				"c.yaml: Service default/web: skipped: already in b.yaml",
			},
		},
		{
			name:  "one name in two kinds and two namespaces",
			files: map[string]string{"a.yaml": dbYAML + "---\n" + strings.Replace(dbYAML, "shop", "prod", 1) + "---\n" + strings.Replace(sliceYML, "db-1", "db", 1)},
			want:  []string{dbLine, "Service prod/db ClusterIP None", strings.Replace(sliceLine, "db-1", "db", 1)},
		},
		{
			name:  "mistyped fields",
			files: map[string]string{"a.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIp: 192.0.2.8, clusterIP: 192.0.2.7}\n"},
			want:  []string{"Service default/web ClusterIP 192.0.2.7"},
			problems: []string{
				`a.yaml: Service web: ignored: unknown field "spec.clusterIp"`,
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, problems, err := Read(write(t, tc.files))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, summary(o)); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.problems, problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestManyProblems(t *testing.T) {
	o, problems, err := Read(write(t, map[string]string{"a.json": strings.Repeat("{}", 1234), "b.yaml": webYAML}))
	if err != nil || len(o.Services) != 1 {
		t.Fatalf("got %v, %v, want one Service", summary(o), err)
	}
	if n := len(problems); n != 1001 || problems[n-1] != "and 234 more" {
		t.Errorf("got %d problems, the last %q, want 1000 and one about 234 more", n, problems[n-1])
	}
}

func TestReadErrors(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  []string // what the error has, in order
	}{
		{"YAML", map[string]string{"a.yaml": webYAML, "b.yaml": webYAML + "---\nkind: [Service\n"}, []string{"b.yaml, document 2 from line 5: yaml: line "}},
		{"JSON", map[string]string{"b.json": webJSON + "\n\n" + webJSON[:50]}, []string{"b.json, document 2 from line 3: unexpected EOF"}},
		{"key twice", map[string]string{"a.yaml": "kind: Service\nkind: Service\n"}, []string{"a.yaml: yaml: unmarshal errors:   line 2: key \"kind\" already set in map"}},
		{"half a file", map[string]string{"a.yaml": webYAML[:9]}, []string{"a.yaml: not an object"}},
		{"a sequence", map[string]string{"a.yaml": "[1, 2]"}, []string{"a.yaml: not an object"}},
		{"item", map[string]string{"a.json": `{"apiVersion":"v1","kind":"List","items":[7]}`}, []string{"a.json: item 1: not an object"}},
		{"items", map[string]string{"a.json": `{"apiVersion":"v1","kind":"List","items":7}`}, []string{"a.json: List: ", "items"}},
		{"shape of a field", map[string]string{"a.yaml": strings.Replace(webYAML, "port: 80", "port: http", 1)}, []string{"a.yaml: Service web: ", "port"}},
		{"every file is named", map[string]string{"a.yaml": "{", "b.yaml": webYAML, "c.yaml": "{"}, []string{"a.yaml: ", "c.yaml: "}},
		{"after an object, with a comma", map[string]string{"a.yaml": "{a: 1},\n{b: 2}"}, []string{"a.yaml: not one object"}},
		{"after content without a separator", map[string]string{"a.yaml": "{a: 1}\nb: 2"}, []string{"a.yaml: yaml: "}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, _, err := Read(write(t, tc.files))
			if err == nil || o != nil {
				t.Fatalf("got %v, %v, want an error alone", summary(o), err)
			}
			rest := err.Error()
			for _, part := range tc.want {
				_, after, ok := strings.Cut(rest, part)
				if !ok {
					t.Fatalf("got error %q, want %q in it", err, tc.want)
				}
				rest = after
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error of several lines: %q", err)
			}
		})
	}
	t.Run("no directory", func(t *testing.T) {
		missing := filepath.Join(t.TempDir(), "missing")
		if _, _, err := Read(missing); err == nil || !strings.Contains(err.Error(), missing) {
			t.Errorf("got %v, want an error that names %s", err, missing)
		}
	})
}

func TestReadFileTypes(t *testing.T) {
	elsewhere := write(t, map[string]string{"file": webYAML})
	dir := write(t, map[string]string{"real.yaml": dbYAML})
	for _, err := range []error{
		os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o755),
		os.Symlink(elsewhere, filepath.Join(dir, "folderlink.yaml")),
		os.Symlink(filepath.Join(elsewhere, "file"), filepath.Join(dir, "link.yaml")),
		syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(t.TempDir(), "dir")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, link} {
		o, problems, err := Read(d)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{webLine, dbLine}, summary(o)); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"pipe.yaml: skipped: not a regular file"}, problems); diff != "" {
			t.Errorf("problems (-want +got):\n%s", diff)
		}
	}

	t.Run("link to nowhere", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Symlink("nowhere", filepath.Join(dir, "a.yaml")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "a.yaml") {
			t.Errorf("got %v, want an error that names a.yaml", err)
		}
	})
	t.Run("size", func(t *testing.T) {
		dir := write(t, map[string]string{"a.json": webJSON + strings.Repeat(" ", maxFileSize-len(webJSON))})
		path := filepath.Join(dir, "a.json")
		if o, _, err := Read(dir); err != nil || len(o.Services) != 1 {
			t.Errorf("16 MiB: got %v, %v, want one Service", summary(o), err)
		}
		if err := os.Truncate(path, maxFileSize+1); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "a.json: larger than 16 MiB") {
			t.Errorf("got %v, want an error about the size of a.json", err)
		}
	})
}

// completedYAML has a Service, an EndpointSlice and a Node to complete.
const completedYAML = `
apiVersion: v1
kind: Service
metadata:
  name: web
  resourceVersion: "77"
  uid: 0b5e
  generation: 3
  creationTimestamp: 2024-05-06T07:08:09Z
  deletionTimestamp: 2024-05-06T07:08:09Z
  finalizers: [x]
  labels: {app: web}
  annotations: {example.org/note: text}
  managedFields: [{manager: kubectl}]
spec:
  clusterIPs: [192.0.2.7, "2001:db8::7"]
  ports: [{port: 80, name: http}, {port: 53, protocol: UDP, name: dns}]
status:
  loadBalancer: {ingress: [{ip: 198.51.100.1}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{}, {name: dns, port: 53, protocol: UDP}]
endpoints: [{addresses: [192.0.2.31]}]
---
apiVersion: v1
kind: Node
metadata: {name: node-a, namespace: x, labels: {topology.kubernetes.io/zone: a}}
spec: {podCIDR: 10.244.0.0/24}
`

// completed writes completedYAML to a file of that time.
func completed(t *testing.T, modified time.Time) (dir, path string) {
	t.Helper()
	dir = write(t, map[string]string{"a.yaml": completedYAML})
	path = filepath.Join(dir, "a.yaml")
	if err := os.Chtimes(path, modified, modified); err != nil {
		t.Fatal(err)
	}
	return dir, path
}

func TestCompleted(t *testing.T) {
	modified := time.Date(2025, 1, 2, 3, 4, 5, 678, time.UTC)
	dir, _ := completed(t, modified)
	got, problems, err := Read(dir)
	if err != nil || problems != nil {
		t.Fatal(problems, err)
	}
	fileTime := metav1.Unix(modified.Unix(), 0)
	want := &Objects{
		Services: []*corev1.Service{{
			TypeMeta: metav1.TypeMeta{Kind: "Service", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{
				Name: "web", Namespace: "default", UID: "0b5e",
				Labels:            map[string]string{"app": "web"},
				Annotations:       map[string]string{"example.org/note": "text"},
				CreationTimestamp: metav1.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC),
			},
			Spec: corev1.ServiceSpec{
				Type:      corev1.ServiceTypeClusterIP,
				ClusterIP: "192.0.2.7", ClusterIPs: []string{"192.0.2.7", "2001:db8::7"},
				Ports: []corev1.ServicePort{
					{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP},
					{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
				},
			},
		}},
		EndpointSlices: []*discoveryv1.EndpointSlice{{
			TypeMeta: metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
			ObjectMeta: metav1.ObjectMeta{
				Name: "web-1", Namespace: "default", CreationTimestamp: fileTime,
				Labels: map[string]string{"kubernetes.io/service-name": "web"},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{
				{Name: new(""), Protocol: new(corev1.ProtocolTCP)},
				{Name: new("dns"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(53))},
			},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.31"}}},
		}},
		Nodes: []*corev1.Node{{
			TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{
				Name: "node-a", CreationTimestamp: fileTime,
				Labels: map[string]string{"topology.kubernetes.io/zone": "a"},
			},
		}},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ResourceVersion")); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

// TestResourceVersions: they are numbers, all different, the same when the file
// is read again, and another for the object alone that changes.
func TestResourceVersions(t *testing.T) {
	modified := time.Date(2025, 1, 2, 3, 4, 5, 678, time.UTC)
	dir, path := completed(t, modified)
	got, problems, err := Read(dir)
	if err != nil || problems != nil {
		t.Fatal(problems, err)
	}
	versions := []string{got.Services[0].ResourceVersion, got.EndpointSlices[0].ResourceVersion, got.Nodes[0].ResourceVersion}
	for i, v := range versions {
		if strings.Trim(v, "0123456789") != "" || v == "" || v == "77" || slices.Contains(versions[:i], v) {
			t.Errorf("resourceVersions %q: want a different number for each", versions)
		}
	}
	again, _, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, again); diff != "" {
		t.Errorf("read again (-first +second):\n%s", diff)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, strings.Replace(string(data), "192.0.2.7", "192.0.2.8", 1))
	if err := os.Chtimes(path, modified, modified); err != nil {
		t.Fatal(err)
	}
	edited, _, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if v := edited.Services[0].ResourceVersion; v == versions[0] {
		t.Errorf("resourceVersion %s of an edited Service: want another", v)
	}
	if v := edited.EndpointSlices[0].ResourceVersion; v != versions[1] {
		t.Errorf("resourceVersion %s of an EndpointSlice beside an edited Service, want %s", v, versions[1])
	}
}

func TestClusterIPDefaults(t *testing.T) {
	for _, tc := range []struct{ name, spec, want string }{
		{"clusterIP alone", "{clusterIP: 192.0.2.7}", "ClusterIP 192.0.2.7 [192.0.2.7]"},
		{"clusterIPs alone", "{clusterIPs: ['2001:db8::7', 192.0.2.7]}", "ClusterIP 2001:db8::7 [2001:db8::7 192.0.2.7]"},
		{"both", "{type: NodePort, clusterIP: 192.0.2.7, clusterIPs: [192.0.2.7]}", "NodePort 192.0.2.7 [192.0.2.7]"},
		{"headless", "{type: LoadBalancer, clusterIP: None}", "LoadBalancer None [None]"},
		{"headless, families given", "{clusterIPs: [None], ipFamilies: [IPv4, IPv6]}", "ClusterIP None [None]"},
		{"ExternalName", "{type: ExternalName, externalName: www.example.org.}", "ExternalName  []"},
		{"ExternalName that is an address", "{type: ExternalName, externalName: 192.0.2.9}", "ExternalName  []"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, problems, err := Read(write(t, map[string]string{"a.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: " + tc.spec}))
			if err != nil || problems != nil {
				t.Fatal(problems, err)
			}
			spec := o.Services[0].Spec
			if got := fmt.Sprint(spec.Type, " ", spec.ClusterIP, " ", spec.ClusterIPs); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestSamples(t *testing.T) {
	o, problems, err := Read("../../../../deploy/samples")
	if err != nil || problems != nil {
		t.Fatal(problems, err)
	}
	want := []string{
		"Service shop/db ClusterIP None pg:5432/TCP",
		"Service shop/db-peers ClusterIP None pg-peers:5433/TCP",
		"Service default/storefront ExternalName web.shop.svc.cluster.local",
		"Service shop/partner ExternalName www.example.org",
		"Service kube-system/kube-dns ClusterIP 10.96.0.10 dns:53/UDP dns-tcp:53/TCP metrics:10055/TCP",
		"Service default/kubernetes ClusterIP 10.96.0.1 https:443/TCP",
		"Service shop/web ClusterIP 10.96.20.7 http:80/TCP",
		"Service shop/api ClusterIP 10.96.20.8,2001:db8:96::20:8 https:443/TCP grpc:9090/TCP",
		"Service shop/workers ClusterIP None jobs:7000/TCP",
		"EndpointSlice shop/db-x4n8h of db IPv4 pg:5432/TCP 10.244.0.31=db-0 10.244.1.31=db-1 10.244.2.31=db-2",
		"EndpointSlice shop/db-peers-9r2kc of db-peers IPv4 pg-peers:5433/TCP 10.244.0.31=db-0 10.244.1.31=db-1 10.244.2.31=db-2",
		"EndpointSlice kube-system/kube-dns-5x8lq of kube-dns IPv4 dns:53/UDP dns-tcp:53/TCP metrics:10055/TCP 10.244.0.2 10.244.1.2",
		"EndpointSlice default/kubernetes of kubernetes IPv4 https:6443/TCP 192.0.2.10 192.0.2.11 192.0.2.12",
		"EndpointSlice shop/web-jk2vd of web IPv4 http:8080/TCP 10.244.0.21 10.244.1.21",
		"EndpointSlice shop/api-ipv4-c7m4p of api IPv4 https:8443/TCP grpc:9090/TCP 10.244.1.22",
		"EndpointSlice shop/api-ipv6-t6wz9 of api IPv6 https:8443/TCP grpc:9090/TCP 2001:db8:244:1::22",
		"EndpointSlice shop/workers-h8d5s of workers IPv4 jobs:7000/TCP 10.244.0.41 10.244.1.41",
		"EndpointSlice shop/workers-p3f7b of workers IPv4 jobs:7001/TCP 10.244.2.41",
	}
	if diff := cmp.Diff(want, summary(o)); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
	if !o.Services[1].Spec.PublishNotReadyAddresses {
		t.Error("db-peers does not publish addresses that are not ready")
	}
	for _, s := range o.EndpointSlices[:2] {
		if ready := s.Endpoints[2].Conditions.Ready; ready == nil || *ready {
			t.Errorf("db-2 is ready in %s", s.Name)
		}
	}
}

// BenchmarkRead reads 5,000 Services with a cluster IP, and 500 headless ones of
// 20 endpoints.
func BenchmarkRead(b *testing.B) {
	var text strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: web-%d\n  namespace: shop\nspec:\n"+
			"  clusterIP: 10.96.%d.%d\n  ports:\n  - name: http\n    port: 80\n", i, i/250, i%250+1)
	}
	for i := range 500 {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: db-%d\nspec:\n  clusterIP: None\n"+
			"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: db-%d\n  labels:\n    kubernetes.io/service-name: db-%d\n"+
			"addressType: IPv4\nports:\n- name: pg\n  port: 5432\nendpoints:\n", i, i, i)
		for j := range 20 {
			fmt.Fprintf(&text, "- addresses: [10.%d.%d.%d]\n  hostname: db-%d\n", 200+i/250, i%250, j+1, j)
		}
	}
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text.String()), 0o644); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		o, problems, err := Read(dir)
		if err != nil || problems != nil || len(o.Services) != 5500 {
			b.Fatal(problems, err)
		}
	}
}
