package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/golang/glog"
	"github.com/spf13/pflag"

	"kubedns/pkg/dns/explain"
)

// Exit codes of explainCommand.
const (
	explainResolves = 0
	explainNot      = 1
	explainFailed   = 2
)

const explainUsage = `Usage: kube-dns explain NAME [TYPE] [flags]

Asks a running kube-dns why NAME, a name or an address, resolves or does not.
TYPE is A by default, and PTR for an address or its reverse name.

Exit status: 0 if the name resolves, 1 if it does not, 2 if kube-dns could not
be asked.

`

// explainCommand is `kube-dns explain`: args are those behind that word.
func explainCommand(ctx context.Context, args []string, stdout, stderr io.Writer) (exit int) {
	fs := pflag.NewFlagSet("kube-dns explain", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	server := fs.String("server", "127.0.0.1:8081", "host:port of a running kube-dns, where port is its --healthz-port")
	search := fs.String("search", "", "namespace of a pod; NAME is looked up along that pod's search path")
	output := fs.StringP("output", "o", "text", "output format, text or json")
	fail := func(err error) int {
		fmt.Fprintln(stderr, "kube-dns explain:", err)
		return explainFailed
	}
	err := fs.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, explainUsage+fs.FlagUsages())
		return explainResolves
	case err != nil:
		return fail(err)
	case fs.NArg() < 1 || fs.NArg() > 2:
		return fail(errors.New("usage: kube-dns explain NAME [TYPE] [flags]; see --help"))
	case *output != "text" && *output != "json":
		return fail(fmt.Errorf("--output=%q: must be text or json", *output))
	}
	// What is wrong with the question is said without a server.
	if _, err := explain.NewRequest(fs.Arg(0), fs.Arg(1), *search); err != nil {
		return fail(err)
	}
	address, err := explainURL(*server, fs.Arg(0), fs.Arg(1), *search)
	if err != nil {
		return fail(fmt.Errorf("--server=%q: %w", *server, err))
	}
	body, err := fetch(ctx, address)
	if err != nil {
		return fail(err)
	}
	var e explain.Explanation
	if err := json.Unmarshal(body, &e); err != nil || e.Question.Name == "" {
		return fail(fmt.Errorf("%s did not answer with an explanation: is it the --healthz-port of a kube-dns?", *server))
	}
	if *output == "json" {
		_, err = stdout.Write(body)
	} else {
		err = e.WriteText(stdout)
	}
	switch {
	case err != nil:
		return fail(err)
	case e.Resolves:
		return explainResolves
	}
	return explainNot
}

func explainURL(server, name, qtype, search string) (string, error) {
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		return "", errors.New("not host:port")
	}
	if host == "" {
		host = "127.0.0.1"
	}
	query := url.Values{"name": {name}, "format": {"json"}}
	if qtype != "" {
		query.Set("type", qtype)
	}
	if search != "" {
		query.Set("search", search)
	}
	u := url.URL{Scheme: "http", Host: net.JoinHostPort(host, port), Path: "/explain", RawQuery: query.Encode()}
	return u.String(), nil
}

// fetch asks once, without a proxy, for at most 10 s and 4 MiB.
func fetch(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, fmt.Errorf("asking %s: %w", req.URL.Host, err)
	}
	defer func() {
		if err := resp.Body.Close(); err != nil {
			glog.V(2).Infof("explain: %v", err)
		}
	}()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", req.URL.Host, err)
	}
	if resp.StatusCode != http.StatusOK {
		var said struct {
			Error string `json:"error"`
		}
		if json.Unmarshal(body, &said) == nil && said.Error != "" {
			return nil, fmt.Errorf("%s: %s", req.URL.Host, oneLine(said.Error))
		}
		return nil, fmt.Errorf("%s answered %s: is it the --healthz-port of a kube-dns?", req.URL.Host, resp.Status)
	}
	return body, nil
}

// oneLine is s without what a terminal would obey.
func oneLine(s string) string {
	return strings.Trim(fmt.Sprintf("%q", s[:min(len(s), 500)]), `"`)
}
