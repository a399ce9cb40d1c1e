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

// defaultStateDir is where the servers file is when no flag says otherwise.
const defaultStateDir = "/run/dnsmasq-nanny"

// stateDir is the folder with the servers file and the last good configuration.
// One nanny has it at a time.
type stateDir struct {
	path      string
	lock      *os.File
	temporary bool // nobody else knows it
}

// openStateDir opens the folder path, which is made if it is not there. Where
// that cannot be used it takes a new one among the temporary files; the error
// is that there is no folder to write to at all.
func openStateDir(path string) (*stateDir, error) {
	s, err := lockDir(path)
	if err == nil {
		return s, nil
	}
	temp, tempErr := os.MkdirTemp("", "dnsmasq-nanny-")
	if tempErr != nil {
		return nil, errors.Join(err, tempErr)
	}
	glog.Infof("dnsmasq: using %s, as %v", temp, err)
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
	// dnsmasq splits neither paths nor lines at blanks, but a line break or a #
	// in a path is not what anybody means.
	if strings.ContainsAny(path, "\n\r") {
		return nil, fmt.Errorf("%q has a line break", path)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("%s is another nanny's: %w", path, err)
	}
	s := &stateDir{path: path, lock: lock}
	// Only a file that can be replaced is of use, not one that can be opened.
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

// close gives the folder free, and removes it when it was temporary.
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

// saveLastGood keeps cfg as a ConfigMap's data, in JSON.
func (s *stateDir) saveLastGood(cfg *config.Config) error {
	text, err := json.Marshal(cfg.Data())
	if err != nil {
		return err
	}
	return replaceFile(s.lastGoodFile(), append(text, '\n'))
}

// loadLastGood returns what saveLastGood kept. The error is os.ErrNotExist when
// it never did.
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

// replaceFile writes a file aside and renames it, so that a reader has the one
// before or this one, whole. Everybody may read it.
func replaceFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-")
	if err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err // its path is another one each time
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
