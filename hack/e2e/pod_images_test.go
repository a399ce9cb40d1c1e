package e2e

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kubedns/hack/e2e/harness"
	"kubedns/hack/e2e/pods"
)

// imageLimits are the images and how many bytes each may have.
var imageLimits = map[string]int64{"kube-dns": 25e6, "dnsmasq-nanny": 25e6, "sidecar": 15e6}

var imageArches = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// TestImages looks at what is in the images, and builds them twice.
func TestImages(t *testing.T) {
	if pods.Isolated() {
		t.Skip("done outside of it")
	}
	pods.RequireTools(t, "podman", "apt-get", "dpkg-deb")
	first := pods.Images(t)
	t.Run("a second build has the same digests", func(t *testing.T) {
		if got := strings.Count(first, "sha256:"); got != len(imageLimits)*len(imageArches) {
			t.Fatalf("%d digests in\n%s", got, first)
		}
		second, err := pods.BuildImages()
		if err != nil {
			t.Fatal(err)
		}
		if first != second {
			t.Errorf("the first build says\n%s\nthe second\n%s", first, second)
		}
	})
	for name, limit := range imageLimits {
		t.Run(name, func(t *testing.T) {
			for arch, machine := range imageArches {
				t.Run(arch, func(t *testing.T) {
					image := pods.ImagePrefix + "/" + name + ":" + pods.ImageVersion + "-" + arch
					checkImageConfig(t, image, name, arch, limit)
					checkImageFiles(t, image, name, machine)
				})
			}
			t.Run("list", func(t *testing.T) {
				out, err := exec.CommandContext(t.Context(), "podman", "manifest", "inspect", pods.ImagePrefix+"/"+name+":"+pods.ImageVersion).Output()
				if err != nil {
					t.Fatal(err)
				}
				for arch := range imageArches {
					if !bytes.Contains(out, []byte(`"architecture": "`+arch+`"`)) {
						t.Errorf("%s is not in the list of images\n%s", arch, out)
					}
				}
			})
		})
	}
}

func checkImageConfig(t *testing.T, image, name, arch string, limit int64) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "podman", "image", "inspect", image).Output()
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Architecture string
		Size         int64
		Created      string
		Config       struct {
			User       string
			Entrypoint []string
			Labels     map[string]string
		}
	}
	if err := json.Unmarshal(out, &list); err != nil || len(list) != 1 {
		t.Fatalf("%v in %s", err, out)
	}
	got := list[0]
	user := "1001:1001"
	if name == "dnsmasq-nanny" {
		user = "" // the stock pod has to be able to run it as root
	}
	if got.Architecture != arch || got.Config.User != user || !slices.Equal(got.Config.Entrypoint, []string{"/" + name}) {
		t.Errorf("architecture %s, user %s, entrypoint %q", got.Architecture, got.Config.User, got.Config.Entrypoint)
	}
	if got.Size > limit {
		t.Errorf("%d bytes, at most %d", got.Size, limit)
	}
	if got.Config.Labels["org.opencontainers.image.version"] != pods.ImageVersion || len(got.Config.Labels["org.opencontainers.image.revision"]) < 7 {
		t.Errorf("labels %q", got.Config.Labels)
	}
	t.Logf("%s: %.1f MB, created %s", image, float64(got.Size)/1e6, got.Created)
}

// checkImageFiles looks at each file: only programs and libraries of the right
// architecture, none of them a shell or a package manager, nothing that changes
// its user, and every library that is needed.
func checkImageFiles(t *testing.T, image, name string, machine elf.Machine) {
	t.Helper()
	created, err := exec.CommandContext(t.Context(), "podman", "create", image).Output()
	if err != nil {
		t.Fatal(err)
	}
	container := strings.TrimSpace(string(created))
	defer func() {
		if out, err := exec.Command("podman", "rm", container).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}()
	archive, err := exec.CommandContext(t.Context(), "podman", "export", container).Output()
	if err != nil {
		t.Fatal(err)
	}
	var programs, names []string
	needed := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		file := path.Clean("/" + header.Name)
		names = append(names, path.Base(file))
		if header.Mode&(0o002|0o6000) != 0 && header.Typeflag == tar.TypeReg {
			t.Errorf("%s has mode %o", file, header.Mode)
		}
		if header.Typeflag != tar.TypeReg || header.Mode&0o111 == 0 {
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(data))
		if err != nil {
			t.Errorf("%s can be executed and is no ELF file: %v", file, err)
			continue
		}
		if f.Machine != machine {
			t.Errorf("%s is for %v, want %v", file, f.Machine, machine)
		}
		if f.Section(".interp") != nil || file == "/"+name {
			programs = append(programs, file)
		}
		libraries, err := f.ImportedLibraries()
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, library := range libraries {
			needed[library] = file
		}
		if file == "/"+name && (len(libraries) > 0 || f.Section(".interp") != nil) {
			t.Errorf("%s is not static", file)
		}
	}
	slices.Sort(programs)
	want := []string{"/" + name}
	if name == "dnsmasq-nanny" {
		want = append(want, "/usr/sbin/dnsmasq")
		// Some libraries can be run as a program as well, to tell their version.
		programs = slices.DeleteFunc(programs, func(p string) bool { return strings.Contains(path.Base(p), ".so.") })
	}
	if !slices.Equal(programs, want) {
		t.Errorf("programs %q, want %q", programs, want)
	}
	for library, by := range needed {
		if !slices.Contains(names, library) {
			t.Errorf("%s needs %s, which is not there", by, library)
		}
	}
	for _, unwanted := range []string{"sh", "bash", "dash", "busybox", "apt", "apt-get"} {
		if slices.Contains(names, unwanted) {
			t.Errorf("there is a %s", unwanted)
		}
	}
}

// TestDebfiles has packages that lack what is asked for.
func TestDebfiles(t *testing.T) {
	t.Parallel()
	pods.RequireTools(t, "dpkg-deb")
	dir := t.TempDir()
	for name, text := range map[string]string{
		"pkg/DEBIAN/control":           "Package: empty\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\nDescription: nothing\n",
		"pkg/usr/share/doc/empty/note": "nothing\n",
	} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	deb := filepath.Join(dir, "empty.deb")
	if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--build", filepath.Join(dir, "pkg"), deb).CombinedOutput(); err != nil {
		harness.Require(t, fmt.Errorf("dpkg-deb: %w: %s", err, out))
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", "./build/debfiles", "-program", "/usr/sbin/dnsmasq", "-out", filepath.Join(dir, "out"), deb)
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no package has /usr/sbin/dnsmasq") {
		t.Errorf("%v, and it says %s", err, out)
	}
}
