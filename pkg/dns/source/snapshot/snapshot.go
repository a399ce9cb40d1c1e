// Package snapshot keeps the Services and EndpointSlices that a source has
// delivered in a file, so that kube-dns can answer after a restart while the
// API server is down.
//
// A snapshot is no source. It is read once, at the start; package dns serves
// its objects until the source is complete and then uses the source's alone.
// From then on File.Run, in its caller's goroutine, writes a snapshot after
// changes.
package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/golang/glog"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"kubedns/pkg/dns/objects"
)

// The layout of a snapshot file:
//
//	"kube-dns snapshot 1\n"       the version of this layout
//	SHA-256 of all that follows   32 octets
//	when it was taken             Unix nanoseconds, big-endian, 8 octets
//	length, ServiceList           big-endian, 8 octets; protobuf as the API has it
//	length, EndpointSliceList
//
// The lists have only the fields that package objects keeps.

const (
	magic = "kube-dns snapshot 1\n"
	// maxSize is the largest file that is read; 100,000 endpoints take 10 MB.
	maxSize = 1 << 30
)

// ErrNone is the error where there is no file, as before the first snapshot.
var ErrNone = errors.New("no snapshot yet")

// encode returns the contents of a snapshot file.
func encode(services []*objects.Service, slices []*objects.EndpointSlice, taken time.Time) ([]byte, error) {
	var serviceList corev1.ServiceList
	for _, s := range services {
		serviceList.Items = append(serviceList.Items, apiService(s))
	}
	var sliceList discoveryv1.EndpointSliceList
	for _, s := range slices {
		sliceList.Items = append(sliceList.Items, apiSlice(s))
	}
	first, err := serviceList.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encoding services: %w", err)
	}
	second, err := sliceList.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encoding endpointslices: %w", err)
	}
	b := make([]byte, 0, len(magic)+sha256.Size+3*8+len(first)+len(second))
	b = append(b, magic...)
	b = append(b, make([]byte, sha256.Size)...)
	b = binary.BigEndian.AppendUint64(b, uint64(taken.UnixNano()))
	for _, part := range [][]byte{first, second} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
		b = append(b, part...)
	}
	head := len(magic) + sha256.Size
	sum := sha256.Sum256(b[head:])
	copy(b[len(magic):], sum[:])
	return b, nil
}

// decode is the reverse of encode. The error says what is wrong with the file.
func decode(b []byte) (set *objects.Set, taken time.Time, err error) {
	rest, ok := bytes.CutPrefix(b, []byte(magic))
	if !ok {
		if bytes.HasPrefix(b, []byte("kube-dns snapshot ")) {
			return nil, taken, errors.New("of another version")
		}
		return nil, taken, errors.New("not a snapshot of kube-dns")
	}
	if len(rest) < sha256.Size+8 {
		return nil, taken, errors.New("cut short")
	}
	if sum := sha256.Sum256(rest[sha256.Size:]); !bytes.Equal(sum[:], rest[:sha256.Size]) {
		return nil, taken, errors.New("damaged: its checksum does not match")
	}
	rest = rest[sha256.Size:]
	taken = time.Unix(0, int64(binary.BigEndian.Uint64(rest)))
	rest = rest[8:]
	part := func() ([]byte, error) {
		if len(rest) < 8 || binary.BigEndian.Uint64(rest) > uint64(len(rest)-8) {
			return nil, errors.New("cut short")
		}
		n := binary.BigEndian.Uint64(rest)
		p := rest[8 : 8+n]
		rest = rest[8+n:]
		return p, nil
	}
	var services corev1.ServiceList
	var slices discoveryv1.EndpointSliceList
	for _, list := range []interface{ Unmarshal([]byte) error }{&services, &slices} {
		p, err := part()
		if err != nil {
			return nil, taken, err
		}
		if err := list.Unmarshal(p); err != nil {
			return nil, taken, fmt.Errorf("decoding: %w", err)
		}
	}
	return objects.NewSet(pointers(services.Items), pointers(slices.Items), nil), taken, nil
}

// pointers returns the addresses of all's elements.
func pointers[T any](all []T) []*T {
	p := make([]*T, len(all))
	for i := range all {
		p[i] = &all[i]
	}
	return p
}

// read reads the file at path. The error is ErrNone where there is none.
func read(path string) (set *objects.Set, taken time.Time, err error) {
	// O_NONBLOCK, because opening a named pipe waits for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, taken, ErrNone
	}
	if err != nil {
		return nil, taken, fmt.Errorf("opening snapshot: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, taken, fmt.Errorf("reading snapshot: %w", err)
	} else if !info.Mode().IsRegular() {
		return nil, taken, fmt.Errorf("snapshot %s: not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSize))
	if err != nil {
		return nil, taken, fmt.Errorf("reading snapshot: %w", err)
	}
	if set, taken, err = decode(b); err != nil {
		return nil, taken, fmt.Errorf("snapshot %s: %w", path, err)
	}
	return set, taken, nil
}

// write replaces the file at path by one with the contents b, in one step:
// whenever the process or the machine ends, the file is the old one or the
// whole new one.
func write(path string, b []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".new-*")
	if err != nil {
		return fmt.Errorf("writing snapshot: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing snapshot: %w", errors.Join(err, f.Close(), os.Remove(f.Name())))
		}
	}()
	if _, err := f.Write(b); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		glog.Warningf("dns: closing snapshot: %v", err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil // it is in place; only a crash of the machine could undo it
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		glog.V(2).Infof("dns: syncing %s: %v", dir, err)
	}
	return nil
}

// removeLeftovers removes the files of writers that were killed before the
// rename.
func removeLeftovers(path string) {
	left, err := filepath.Glob(path + ".new-*")
	if err != nil {
		return // path has a pattern's characters
	}
	for _, name := range left {
		if err := os.Remove(name); err != nil {
			glog.Warningf("dns: %v", err)
		}
	}
}
