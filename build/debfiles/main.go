// Debfiles takes one program out of Debian's packages: the program, the shared
// libraries that it needs, directly or through others, and what goes with each
// package that any of these came from, its copyright file and its entry for
// scanners that look for known vulnerabilities.
//
// It reads nothing but the packages it is given, so the program's architecture
// may be another than this machine's. The files that it writes depend on the
// packages alone.
//
// Usage: debfiles -program /usr/sbin/dnsmasq -out DIR package.deb...
package main

import (
	"context"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

func main() { os.Exit(run()) }

func run() int {
	program := flag.String("program", "", "the program's `path` on a Debian system")
	out := flag.String("out", "", "`folder` to write to, which becomes the root of an image")
	flag.Parse()
	if *program == "" || *out == "" || flag.NArg() == 0 {
		flag.Usage()
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := extract(ctx, *program, *out, flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "debfiles: %v\n", err)
		return 1
	}
	return 0
}

func extract(ctx context.Context, program, out string, debs []string) (err error) {
	tmp, err := os.MkdirTemp("", "debfiles-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	s := &system{files: map[string]owned{}}
	for _, deb := range debs {
		if err := s.unpack(ctx, deb, filepath.Join(tmp, filepath.Base(deb))); err != nil {
			return err
		}
	}
	t := &tree{system: s, root: out, done: map[string]bool{}, packages: map[string]*debPackage{}}
	if err := t.addProgram(program); err != nil {
		return err
	}
	return t.addPackages()
}

// A debPackage is an unpacked package.
type debPackage struct {
	name, version string
	control       string // its control file
	dir           string // where its files are
}

// owned is a file of a package.
type owned struct{ pkg *debPackage }

// system is the files of all packages together, by their path from the root.
type system struct{ files map[string]owned }

func (s *system) unpack(ctx context.Context, deb, dir string) error {
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "--extract", deb, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("unpacking %s: %w: %s", deb, err, out)
	}
	control, err := exec.CommandContext(ctx, "dpkg-deb", "--field", deb).Output()
	if err != nil {
		return fmt.Errorf("reading the control file of %s: %w", deb, err)
	}
	p := &debPackage{control: string(control), dir: dir, name: field(string(control), "Package"), version: field(string(control), "Version")}
	if p.name == "" || p.version == "" {
		return fmt.Errorf("%s has no name or no version", deb)
	}
	return filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		s.files["/"+filepath.ToSlash(rel)] = owned{pkg: p}
		return nil
	})
}

// field returns a field of a control file that is on one line.
func field(control, name string) string {
	for line := range strings.Lines(control) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// tree is the folder that is written.
type tree struct {
	system   *system
	root     string
	done     map[string]bool // paths written
	packages map[string]*debPackage
}

// addProgram writes the program and, before it returns, all that it needs.
func (t *tree) addProgram(program string) error {
	target, err := t.add(program)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	queue := []string{target}
	for len(queue) > 0 {
		file := queue[0]
		queue = queue[1:]
		if seen[file] {
			continue
		}
		seen[file] = true
		needed, err := t.needed(file)
		if err != nil {
			return err
		}
		for _, p := range needed {
			lib, err := t.add(p)
			if err != nil {
				return fmt.Errorf("needed by %s: %w", file, err)
			}
			queue = append(queue, lib)
		}
	}
	return nil
}

// needed returns the paths of what the ELF file has the loader load, the
// loader included. Debian's loader looks in these folders when it has no cache,
// in this order.
func (t *tree) needed(file string) ([]string, error) {
	f, err := elf.Open(filepath.Join(t.root, filepath.FromSlash(file)))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	defer f.Close()
	triplet, ok := map[elf.Machine]string{elf.EM_X86_64: "x86_64-linux-gnu", elf.EM_AARCH64: "aarch64-linux-gnu"}[f.Machine]
	if !ok {
		return nil, fmt.Errorf("%s is for %v: only amd64 and arm64 are known", file, f.Machine)
	}
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		if paths, err := f.DynString(tag); err == nil && len(paths) > 0 {
			return nil, fmt.Errorf("%s has a search path of its own, %q, which is not followed", file, paths)
		}
	}
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("reading what %s needs: %w", file, err)
	}
	var paths []string
	if interp := f.Section(".interp"); interp != nil {
		text, err := interp.Data()
		if err != nil {
			return nil, fmt.Errorf("reading the loader's name in %s: %w", file, err)
		}
		paths = append(paths, strings.TrimRight(string(text), "\x00"))
	}
	for _, name := range libraries {
		found := false
		for _, dir := range []string{"/lib/" + triplet, "/usr/lib/" + triplet, "/lib", "/usr/lib"} {
			if p, ok := t.locate(path.Join(dir, name)); ok {
				paths = append(paths, p)
				found = true
				break
			}
		}
		// The loader is also listed as a library by some.
		if !found && !strings.HasPrefix(name, "ld-linux") {
			return nil, fmt.Errorf("%s needs %s, which no package has", file, name)
		}
	}
	return paths, nil
}

// locate finds a path in the packages. /lib and /usr/lib, and the like, are
// one on a Debian system, and packages have their files in either.
func (t *tree) locate(file string) (string, bool) {
	for _, p := range []string{file, "/usr" + file, strings.TrimPrefix(file, "/usr")} {
		if _, ok := t.system.files[p]; ok {
			return p, true
		}
	}
	return "", false
}

// add writes the file, and where it is a symbolic link also what it points to.
// It returns the path of the file at the end of the links.
func (t *tree) add(file string) (string, error) {
	for range 10 {
		located, ok := t.locate(file)
		if !ok {
			return "", fmt.Errorf("no package has %s", file)
		}
		owner := t.system.files[located]
		t.packages[owner.pkg.name] = owner.pkg
		source := filepath.Join(owner.pkg.dir, filepath.FromSlash(located))
		info, err := os.Lstat(source)
		if err != nil {
			return "", err
		}
		// It is written where it was asked for: the loader's path is fixed.
		target := filepath.Join(t.root, filepath.FromSlash(file))
		if info.Mode()&fs.ModeSymlink == 0 {
			if t.done[file] {
				return file, nil
			}
			t.done[file] = true
			data, err := os.ReadFile(source)
			if err != nil {
				return "", err
			}
			return file, writeFile(target, data, 0o755)
		}
		link, err := os.Readlink(source)
		if err != nil {
			return "", err
		}
		if !t.done[file] {
			t.done[file] = true
			if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
				return "", err
			}
			if err := os.Symlink(link, target); err != nil {
				return "", err
			}
		}
		if path.IsAbs(link) {
			file = path.Clean(link)
		} else {
			file = path.Join(path.Dir(file), link)
		}
	}
	return "", errors.New("too many symbolic links")
}

// addPackages writes what goes with each package. Scanners read
// /var/lib/dpkg/status.d where an image has no package manager.
func (t *tree) addPackages() error {
	for _, name := range slices.Sorted(maps.Keys(t.packages)) {
		p := t.packages[name]
		copyright, err := t.copyright(name)
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(t.root, "usr/share/doc", name, "copyright"), copyright, 0o644); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(t.root, "var/lib/dpkg/status.d", name), []byte(p.control), 0o644); err != nil {
			return err
		}
		fmt.Printf("%s %s\n", name, p.version)
	}
	return nil
}

// copyright returns the copyright file of a package, whose folder may be a link
// to another package's.
func (t *tree) copyright(name string) ([]byte, error) {
	file := "/usr/share/doc/" + name + "/copyright"
	for range 10 {
		if owner, ok := t.system.files[file]; ok {
			return os.ReadFile(filepath.Join(owner.pkg.dir, filepath.FromSlash(file)))
		}
		dir := path.Dir(file)
		owner, ok := t.system.files[dir]
		if !ok {
			break
		}
		link, err := os.Readlink(filepath.Join(owner.pkg.dir, filepath.FromSlash(dir)))
		if err != nil {
			return nil, err
		}
		file = path.Join(path.Dir(dir), link, "copyright")
	}
	return nil, fmt.Errorf("package %s has no copyright file", name)
}

func writeFile(file string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, data, mode); err != nil {
		return err
	}
	return os.Chmod(file, mode) // whatever the umask
}
