package dnsmasq

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/golang/glog"

	"kubedns/pkg/dns/config"
)

// defaultStateDir is the default of -stateDir.
const defaultStateDir = "/run/dnsmasq-nanny"

// stateDir is the folder with the servers file and the last good configuration.
// One nanny at a time holds its lock.
type stateDir struct {
	path      string
	lock      *os.File
	temporary bool // removed by close
}

// openStateDir opens the folder path, and makes it if it does not exist. If it
// cannot be used, it makes a temporary folder. The error is that neither can be
// written to.
func openStateDir(path string) (*stateDir, error) {
	s, err := lockDir(path)
	if err == nil {
		return s, nil
	}
	temp, tempErr := os.MkdirTemp("", "dnsmasq-nanny-")
	if tempErr != nil {
		return nil, errors.Join(err, tempErr)
	}
	glog.Infof("nanny: using the temporary folder %s: %v", temp, err)
	if s, tempErr = lockDir(temp); tempErr != nil {
		_ = os.RemoveAll(temp)
		return nil, errors.Join(err, tempErr)
	}
	s.temporary = true
	return s, nil
}

// lockDir makes path a folder that dnsmasq can read after it has become another
// user, and that no other nanny writes to.
func lockDir(path string) (*stateDir, error) {
	// dnsmasq's working directory is the root.
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, err
	}
	// A path with a line break is certainly a mistake.
	if strings.ContainsAny(path, "\n\r") {
		return nil, fmt.Errorf("%q has a line break", path)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("%s is in use by another nanny: %w", path, err)
	}
	s := &stateDir{path: path, lock: lock}
	// Writing to a file is not enough: it must be possible to replace it.
	probe := filepath.Join(path, "probe")
	if err := replaceFile(probe, nil); err != nil {
		s.close()
		return nil, err
	}
	_ = os.Remove(probe)
	if err := os.Chmod(path, 0o755); err != nil && !errors.Is(err, os.ErrPermission) {
		s.close()
		return nil, err
	}
	return s, nil
}

// close releases the folder, and removes it if it is temporary.
func (s *stateDir) close() {
	if s.temporary {
		_ = os.RemoveAll(s.path)
	}
	_ = s.lock.Close()
}

func (s *stateDir) serversFile() string  { return filepath.Join(s.path, "servers") }
func (s *stateDir) lastGoodFile() string { return filepath.Join(s.path, "last-good.json") }

func (s *stateDir) writeServers(text string) error {
	return replaceFile(s.serversFile(), []byte(text))
}

// saveLastGood saves cfg as a ConfigMap's data, in JSON.
func (s *stateDir) saveLastGood(cfg *config.Config) error {
	text, err := json.Marshal(cfg.Data())
	if err != nil {
		return err
	}
	return replaceFile(s.lastGoodFile(), append(text, '\n'))
}

// loadLastGood returns what saveLastGood saved, or an fs.ErrNotExist.
func (s *stateDir) loadLastGood() (*config.Config, error) {
	text, err := os.ReadFile(s.lastGoodFile())
	if err != nil {
		return nil, err
	}
	var data map[string]string
	if err := json.Unmarshal(text, &data); err != nil {
		return nil, fmt.Errorf("parsing %s: %w", s.lastGoodFile(), err)
	}
	cfg, _, err := config.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("parsing %s: %w", s.lastGoodFile(), err)
	}
	return cfg, nil
}

// replaceFile replaces a file in one step: a reader sees all of the old one or all
// of the new one. All users may read it.
func replaceFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-")
	if err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err // without its path, which differs each time
		}
		return fmt.Errorf("writing %s: %w", path, err)
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
