package soak

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// AuditPolicy is the policy of an API server's audit log that an AuditLog
// reads: lists and watches by one user.
func AuditPolicy(user string) []byte {
	return fmt.Appendf(nil, `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, users: [%q], verbs: [list, watch]}
- {level: None}
`, user)
}

// An AuditLog follows an API server's audit log, and tells a History when
// kube-dns was heard and cut off. Its methods are safe for concurrent use.
type AuditLog struct {
	// Log is the file's path.
	Log string
	// History is told.
	History *History

	mu             sync.Mutex
	offset         int64
	lists, watches int
	open           map[Resource]string    // the audit ID of the watch that is open
	listed         map[Resource]time.Time // when a list was answered that no watch has followed yet
	fault          time.Time              // when the last fault was made
}

type auditEvent struct {
	AuditID   string `json:"auditID"`
	Stage     string `json:"stage"`
	Verb      string `json:"verb"`
	ObjectRef struct {
		Resource Resource `json:"resource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Received time.Time `json:"requestReceivedTimestamp"`
	At       time.Time `json:"stageTimestamp"`
}

// Fault calls inject, which ends every connection of kube-dns to the API server,
// and notes that.
func (a *AuditLog) Fault(inject func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for _, r := range Resources {
		a.History.Cut(r, now)
	}
	err := inject()
	a.fault = time.Now()
	a.open = map[Resource]string{}
	a.listed = map[Resource]time.Time{}
	return err
}

// Requests counts the successful lists and watches.
func (a *AuditLog) Requests() (lists, watches int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lists, a.watches
}

// Read reads what is new in the log.
func (a *AuditLog) Read() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, err := os.Open(a.Log)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(a.offset, io.SeekStart); err != nil {
		return err
	}
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return nil // a line that is not whole is read again
		}
		if err != nil {
			return err
		}
		a.offset += int64(len(line))
		var e auditEvent
		if err := json.Unmarshal(bytes.TrimSpace(line), &e); err != nil {
			// An API server that was killed may have left half a line, which
			// the next one's first line then stands behind.
			if _, behind, ok := bytes.Cut(line[1:], []byte(`{"kind":"Event"`)); ok {
				err = json.Unmarshal(append([]byte(`{"kind":"Event"`), bytes.TrimSpace(behind)...), &e)
			}
			if err != nil {
				return fmt.Errorf("%s: %w: %s", a.Log, err, line)
			}
		}
		a.take(e)
	}
}

func (a *AuditLog) take(e auditEvent) {
	if a.open == nil {
		a.open, a.listed = map[Resource]string{}, map[Resource]time.Time{}
	}
	r := e.ObjectRef.Resource
	if e.Received.Before(a.fault) {
		return // over a connection that the fault has ended
	}
	ok := e.ResponseStatus.Code == 200
	switch {
	case e.Verb == "list" && e.Stage == "ResponseComplete" && ok:
		a.lists++
		a.listed[r] = e.At
		a.History.Heard(r, e.At)
	case e.Verb == "watch" && e.Stage == "ResponseStarted" && ok:
		a.watches++
		a.open[r] = e.AuditID
		delete(a.listed, r)
		a.History.Heard(r, e.At)
	case e.Verb == "watch" && e.Stage != "ResponseStarted":
		// It has ended, or never began. What was not heard of from the list on
		// is not answerable for longer by that: the outage goes on from there.
		switch {
		case a.open[r] == e.AuditID:
			delete(a.open, r)
			a.History.Cut(r, e.At)
		case a.open[r] == "" && !ok:
			from := e.Received
			if l, ok := a.listed[r]; ok && l.Before(from) {
				from = l
			}
			delete(a.listed, r)
			a.History.Cut(r, from)
		}
	}
}
