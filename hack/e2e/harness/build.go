package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// sourcePath returns the path of a file of this repository, given by its
// slash-separated path from the top.
func sourcePath(file string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		path := filepath.Join(dir, filepath.FromSlash(file))
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no %s above the working directory", file)
		}
		dir = parent
	}
}

// Chdir makes the folder dir of this repository, as "hack/e2e", the working
// directory, which may be any in the repository.
func Chdir(dir string) error {
	path, err := sourcePath(dir)
	if err != nil {
		return err
	}
	return os.Chdir(path)
}

// ErrNoSource is returned for a program whose source is not in the repository.
var ErrNoSource = errors.New("no such program")

// Build builds cmd/<program> of this repository into dir and returns the
// binary's path. With race it has the race detector, where this machine can
// build that.
func Build(ctx context.Context, dir, program string, race bool) (string, error) {
	source, err := sourcePath("cmd/" + program + "/main.go")
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoSource, err)
	}
	bin := filepath.Join(dir, program)
	env := "CGO_ENABLED=0"
	args := []string{"build", "-o"}
	if race && canRace() {
		bin += ".race"
		env = "CGO_ENABLED=1"
		args = append(args, bin, "-race") // packages are compiled as for the unit tests
	} else {
		args = append(args, bin, "-trimpath", "-ldflags", "-s -w -X kubedns/pkg/version.Version=e2e -X kubedns/pkg/version.Revision=e2e")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, ".")...)
	cmd.Dir = filepath.Dir(source)
	cmd.Env = append(cmd.Environ(), env, "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w: %s", program, err, out)
	}
	return bin, nil
}

// canRace reports whether the race detector works here: it needs cgo.
func canRace() bool {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return false
	}
	_, err := exec.LookPath("gcc")
	return err == nil
}
