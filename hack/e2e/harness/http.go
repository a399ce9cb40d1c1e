package harness

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// Get returns the status and body of what url answers.
func Get(ctx context.Context, client *http.Client, url string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, "", fmt.Errorf("reading %s: %w", url, err)
	}
	return resp.StatusCode, string(body), nil
}

// getOK is nil when url answers with status 200.
func getOK(ctx context.Context, client *http.Client, url string) error {
	status, body, err := Get(ctx, client, url)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("%s answers %d: %s", url, status, body)
	}
	return nil
}
