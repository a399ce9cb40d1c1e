package apiclient

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

func TestCheckVersion(t *testing.T) {
	var asked string
	version, code := "", http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.String()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		if code == http.StatusOK {
			fmt.Fprintf(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":%q},"items":[]}`, version)
			return
		}
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
	}))
	defer server.Close()
	client, err := Core(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, since, now string
		code             int
		expired, failed  bool
	}{
		{name: "the same", since: "100", now: "100"},
		{name: "newer", since: "99", now: "100"},
		{name: "older", since: "100", now: "99", expired: true},
		{name: "from the beginning", since: "", now: "5"},
		{name: "no numbers", since: "abc", now: "5"},
		{name: "no number now", since: "7", now: "abc"},
		{name: "forbidden", since: "7", code: http.StatusForbidden, failed: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked, version, code = "", tt.now, http.StatusOK
			if tt.code != 0 {
				code = tt.code
			}
			err := CheckVersion(t.Context(), client, "kube-system", "configmaps", metav1.ListOptions{
				ResourceVersion: tt.since, FieldSelector: "metadata.name=kube-dns", Watch: true,
			})
			if got := apierrors.IsResourceExpired(err); got != tt.expired {
				t.Errorf("expired %v (%v), want %v", got, err, tt.expired)
			}
			if failed := apierrors.IsForbidden(err); failed != tt.failed || err != nil && !tt.failed && !tt.expired {
				t.Errorf("error %v", err)
			}
			// A Role may allow this one name alone.
			if want := "/api/v1/namespaces/kube-system/configmaps?fieldSelector=metadata.name%3Dkube-dns&limit=1"; asked != "" && asked != want {
				t.Errorf("asked for %s, want %s", asked, want)
			}
		})
	}
}
