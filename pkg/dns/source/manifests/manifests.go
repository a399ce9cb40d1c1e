// Package manifests reads the Services, EndpointSlices and Nodes that a
// directory of YAML or JSON files describes, and follows changes of the
// directory: kube-dns without an API server.
//
// It does what an API server would have done to an object before kube-dns saw
// it, as far as records depend on it: it sets defaults and rejects invalid
// objects. Source delivers what Watch reports. Read starts no goroutine; Watch
// and Source.Run run in their caller's, beside the one that fsnotify needs,
// which has ended when they return.
package manifests

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// maxFileSize bounds one file, in bytes: 16 MiB hold some 20,000 Services.
const maxFileSize = 16 << 20

// Objects is what a directory holds. It is complete, and nobody changes it or
// the objects in it once it is made, so that it may be shared freely.
//
// Every object is valid and has its defaults: namespace, creationTimestamp
// (the file's modification time where it has none), resourceVersion, and what
// the field comments name. No two of one kind share namespace and name. Of the
// metadata, name, namespace, labels, annotations, uid and creationTimestamp
// are kept, the rest is dropped, as is every status.
//
// resourceVersion is a decimal number made from the object's content, whatever
// the file says: a file that was exported from a cluster and then edited still
// has the version of its export, and equal versions must mean equal objects.
type Objects struct {
	// Services have a type, a protocol for each port, and both clusterIP and
	// clusterIPs, unless they are of type ExternalName. In reading order.
	Services []*corev1.Service
	// EndpointSlices have the label kubernetes.io/service-name, and a name
	// (maybe empty) and a protocol for each port. In reading order.
	EndpointSlices []*discoveryv1.EndpointSlice
	// Nodes have metadata only. In reading order.
	Nodes []*corev1.Node
}

// Read reads the files in dir whose names end in .yaml, .yml or .json, in the
// order of their names. Folders below dir and files whose names begin with a
// dot are ignored; symbolic links are followed.
//
// A YAML file is a stream of documents, a JSON file a sequence of values; each
// is an object, or a list of objects: of kind List, ServiceList,
// EndpointSliceList or NodeList.
//
// problems has one line for everything that was skipped or ignored, which
// names the file and the object: other kinds and API versions, what an API
// server would refuse, a second object of the same name (the first is kept),
// an unknown field. The lines are bounded; then the last tells how many more
// there would be.
//
// err tells of a directory or file that cannot be read or parsed, of all such
// files, and names each, with the document in it where that is known. o is nil
// then: half of what somebody wrote is not what they meant.
func Read(dir string) (o *Objects, problems []string, err error) {
	names, err := fileNames(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("reading manifests: %w", err)
	}
	r := newReader()
	for _, name := range names {
		if fileErr := r.file(dir, name); fileErr != nil {
			if err == nil {
				err = fileErr
			} else {
				err = fmt.Errorf("%w; %w", err, fileErr)
			}
		}
	}
	if err != nil {
		return nil, r.allProblems(), err
	}
	return &r.objects, r.allProblems(), nil
}

// fileNames returns the names of the manifests in dir, sorted. Folders are
// still among them: the entry of a symbolic link does not say what it leads to.
func fileNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if isManifest(e.Name()) && !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// isManifest tells by a file's name whether it is read.
func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// file adds what the file name in dir holds.
func (r *reader) file(dir, name string) error {
	data, modified, err := readFile(filepath.Join(dir, name))
	switch {
	case errors.Is(err, errNotAFile):
		r.problem(name, "", "skipped: %v", err)
		return nil
	case errors.Is(err, errFolder), errors.Is(err, errVanished):
		return nil
	case err != nil:
		return fmt.Errorf("reading manifests: %w", err)
	}
	if err := r.parse(name, data, modified); err != nil {
		return fmt.Errorf("parsing manifests: %w", err)
	}
	return nil
}

var (
	errFolder   = errors.New("a folder")
	errNotAFile = errors.New("not a regular file")
	errVanished = errors.New("deleted since the directory was listed")
)

// readFile returns the content and the modification time of the file at path.
// Its errors name path, or are one of the three above.
func readFile(path string) (data []byte, modified time.Time, err error) {
	// O_NONBLOCK, because the opening of a named pipe waits for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			if _, linkErr := os.Lstat(path); errors.Is(linkErr, fs.ErrNotExist) {
				return nil, time.Time{}, errVanished
			}
			// A symbolic link that leads nowhere: somebody meant a file.
		}
		return nil, time.Time{}, err
	}
	defer f.Close() // only read from: nothing is lost with its error
	info, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	if info.IsDir() {
		return nil, time.Time{}, errFolder
	}
	if !info.Mode().IsRegular() {
		return nil, time.Time{}, errNotAFile
	}
	if info.Size() > maxFileSize {
		return nil, time.Time{}, tooLarge(path)
	}
	data, err = io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, time.Time{}, err
	}
	if len(data) > maxFileSize { // it grew
		return nil, time.Time{}, tooLarge(path)
	}
	return data, info.ModTime(), nil
}

func tooLarge(path string) error {
	return fmt.Errorf("%s: larger than %d MiB", path, maxFileSize>>20)
}
