package dns

import (
	"bytes"
	"context"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A snapshot file keeps the Services and EndpointSlices that were known, so
// that kube-dns can answer after a restart while the API server is away:
//
//	"kube-dns snapshot 1\n"       the version of this layout
//	SHA-256 of all that follows   32 octets
//	when it was taken             Unix nanoseconds, big-endian, 8 octets
//	length, ServiceList           big-endian, 8 octets; protobuf as the API has it
//	length, EndpointSliceList
//
// The objects are trimmed to what records are made of.

const (
	snapshotMagic = "kube-dns snapshot 1\n"
	// snapshotInterval is how often a snapshot is written at the most.
	snapshotInterval = 10 * time.Second
	// maxSnapshot is how large a file is read; 100,000 endpoints take 10 MB.
	maxSnapshot = 1 << 30
)

// errNoSnapshot is that there is no file, as before the first snapshot.
var errNoSnapshot = errors.New("no snapshot yet")

// encodeSnapshot is the contents of a snapshot file.
func encodeSnapshot(services []*service, slices []*slice, taken time.Time) ([]byte, error) {
	var serviceList corev1.ServiceList
	for _, s := range services {
		serviceList.Items = append(serviceList.Items, s.api())
	}
	var sliceList discoveryv1.EndpointSliceList
	for _, s := range slices {
		sliceList.Items = append(sliceList.Items, s.api())
	}
	first, err := serviceList.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encoding services: %w", err)
	}
	second, err := sliceList.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encoding endpointslices: %w", err)
	}
	b := make([]byte, 0, len(snapshotMagic)+sha256.Size+3*8+len(first)+len(second))
	b = append(b, snapshotMagic...)
	b = append(b, make([]byte, sha256.Size)...)
	b = binary.BigEndian.AppendUint64(b, uint64(taken.UnixNano()))
	for _, part := range [][]byte{first, second} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
		b = append(b, part...)
	}
	head := len(snapshotMagic) + sha256.Size
	sum := sha256.Sum256(b[head:])
	copy(b[len(snapshotMagic):], sum[:])
	return b, nil
}

// decodeSnapshot is the reverse of encodeSnapshot. The error says what is
// wrong with the file.
func decodeSnapshot(b []byte) (o *objects, taken time.Time, err error) {
	rest, ok := bytes.CutPrefix(b, []byte(snapshotMagic))
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
	o = newObjects()
	for i := range services.Items {
		o.addService(&services.Items[i])
	}
	for i := range slices.Items {
		o.addSlice(&slices.Items[i])
	}
	o.sort()
	return o, taken, nil
}

// readSnapshot reads the file at path; errNoSnapshot where there is none.
func readSnapshot(path string) (o *objects, taken time.Time, err error) {
	// O_NONBLOCK, because the opening of a named pipe waits for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, taken, errNoSnapshot
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
	b, err := io.ReadAll(io.LimitReader(f, maxSnapshot))
	if err != nil {
		return nil, taken, fmt.Errorf("reading snapshot: %w", err)
	}
	if o, taken, err = decodeSnapshot(b); err != nil {
		return nil, taken, fmt.Errorf("snapshot %s: %w", path, err)
	}
	return o, taken, nil
}

// writeSnapshot puts b at path in one step: whoever reads it, after whatever
// moment the process or the machine ended, finds what was there before or b
// whole.
func writeSnapshot(path string, b []byte) (err error) {
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

// removeLeftovers takes away what writers left that were killed in the middle.
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

func (m *meta) api() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, ResourceVersion: m.ResourceVersion}
}

// api is the Service as the API has it, as far as trimService reads it.
func (s *service) api() corev1.Service {
	t := corev1.Service{ObjectMeta: s.meta.api()}
	t.CreationTimestamp = metav1.NewTime(s.created)
	t.Spec.Type = s.kind
	t.Spec.ExternalName = s.externalName
	t.Spec.PublishNotReadyAddresses = s.publishNotReady
	if s.headless {
		t.Spec.ClusterIP = corev1.ClusterIPNone
	}
	for _, addr := range s.clusterIPs {
		t.Spec.ClusterIPs = append(t.Spec.ClusterIPs, addr.String())
	}
	for _, p := range s.ports {
		t.Spec.Ports = append(t.Spec.Ports, corev1.ServicePort{Name: p.name, Protocol: p.protocol, Port: int32(p.number)})
	}
	return t
}

// api is the EndpointSlice as the API has it, as far as trimSlice reads it.
func (s *slice) api() discoveryv1.EndpointSlice {
	t := discoveryv1.EndpointSlice{ObjectMeta: s.meta.api(), AddressType: s.family}
	t.Labels = map[string]string{discoveryv1.LabelServiceName: s.service}
	for i := range s.ports {
		p := &s.ports[i]
		q := discoveryv1.EndpointPort{Name: &p.name, Protocol: &p.protocol}
		if p.number != 0 {
			number := int32(p.number)
			q.Port = &number
		}
		t.Ports = append(t.Ports, q)
	}
	for i := range s.endpoints {
		e := &s.endpoints[i]
		q := discoveryv1.Endpoint{Addresses: []string{e.addr.String()}}
		q.Conditions.Ready = &e.ready
		if e.hostname != "" {
			q.Hostname = &e.hostname
		}
		if e.pod {
			q.TargetRef = &corev1.ObjectReference{Kind: "Pod"}
		}
		t.Endpoints = append(t.Endpoints, q)
	}
	return t
}

// loadSnapshot serves what the snapshot file holds until the API server has
// been listed. Without a file, or with one that cannot be used, nothing is
// served before that.
func (kd *KubeDNS) loadSnapshot() {
	removeLeftovers(kd.snapshotFile)
	o, taken, err := readSnapshot(kd.snapshotFile)
	if errors.Is(err, errNoSnapshot) {
		return
	}
	if err != nil {
		glog.Warningf("dns: ignored: %v", err)
		return
	}
	now := time.Now()
	for key, s := range o.services {
		kd.tree.Replace(key, buildRecords(s, o.slices[key]), now)
		kd.touch(key) // to be built anew, or gone, once the API server has been listed
	}
	kd.restored.Store(&taken)
	kd.synced.Store(true)
	glog.Infof("dns: serving the snapshot of %v until the API server has been listed: %v",
		taken.UTC().Format(time.RFC3339), kd.tree)
}

// keepSnapshots writes a snapshot after changes, once the records are those of
// the API server, until ctx is done.
func (kd *KubeDNS) keepSnapshots(ctx context.Context) {
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-kd.changed:
		}
		err := kd.takeSnapshot()
		kd.metrics.snapshot(err, time.Now())
		switch {
		case err != nil && !failed:
			glog.Warningf("dns: %v; answers go on", err)
		case err == nil && failed:
			glog.Infof("dns: snapshots are written again")
		}
		failed = err != nil
		if err != nil {
			kd.snapshotDue() // again after the pause
		}
		pause := time.NewTimer(snapshotInterval)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

func (kd *KubeDNS) takeSnapshot() error {
	services, slices := kd.source.all()
	b, err := encodeSnapshot(services, slices, time.Now())
	if err != nil {
		return err
	}
	return writeSnapshot(kd.snapshotFile, b)
}

// snapshotDue has a snapshot written soon.
func (kd *KubeDNS) snapshotDue() {
	select {
	case kd.changed <- struct{}{}:
	default:
	}
}
