package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"pgreshard/move"
)

const watchEvery = time.Second

func (a *app) statusCommand() *cobra.Command {
	var asJSON, watch bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Say where the move stands and whether it is safe to cut over",
		Long: "Say where the move stands, in words; the last line is `safe to cut over: yes`, or `no, because …`. The worker is asked;\n" +
			"where none runs, the bookkeeping tables are read, and it is said what each source's fence does.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withSources(c.Context(), func(e engine, cfg *Config) error {
				if !watch {
					return a.writeStatusOnce(c.Context(), e, cfg, asJSON)
				}
				return a.watchStatus(c.Context(), e, cfg, asJSON)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&watch, "watch", false, "print again every second until interrupted")
	return c
}

func (a *app) writeStatusOnce(ctx context.Context, e engine, c *Config, asJSON bool) error {
	s, err := statusNow(ctx, e, c)
	switch {
	case err != nil && s.Move == "": // nothing is known
		return err
	case asJSON:
		return errors.Join(a.printJSON(s), err)
	}
	return errors.Join(writeStatus(a.stdout, s), err)
}

// watchStatus goes on until the context ends, which is no failure, or the move does.
func (a *app) watchStatus(ctx context.Context, e engine, c *Config, asJSON bool) error {
	for {
		s, err := statusNow(ctx, e, c)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && s.Move == "" {
			return err
		}
		switch {
		case asJSON:
			err = a.printJSON(s)
		case terminal(a.stdout):
			fmt.Fprint(a.stdout, "\x1b[H\x1b[2J")
			err = writeStatus(a.stdout, s)
		default:
			err = writeStatus(a.stdout, s)
			fmt.Fprintln(a.stdout)
		}
		if err != nil || s.State == "completed" || s.State == "cancelled" {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchEvery):
		}
	}
}

// statusNow asks the running worker, which knows most, and where none answers for this move the bookkeeping tables.
func statusNow(ctx context.Context, e engine, c *Config) (move.Status, error) {
	if s, err := askWorker(ctx, c); err == nil && s.Move == c.Move.Name {
		return s, nil
	}
	return e.Status(ctx)
}

const (
	askTimeout = 3 * time.Second
	maxAnswer  = 64 << 20 // bytes: a status has a line per table
)

// askWorker reads /status of the worker the configuration names.
func askWorker(ctx context.Context, c *Config) (move.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	client, base, err := workerClient(c)
	if err != nil {
		return move.Status{}, err
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/status", nil)
	if err != nil {
		return move.Status{}, fmt.Errorf("ask the worker: %w", err)
	}
	if token, err := readToken(c.Move.Name); err == nil && token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return move.Status{}, fmt.Errorf("ask the worker: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return move.Status{}, fmt.Errorf("the worker answers %s", response.Status)
	}
	var s move.Status
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(&s); err != nil {
		return move.Status{}, fmt.Errorf("read the worker's answer: %w", err)
	}
	return s, nil
}

// workerClient reaches the address the worker listens on, on this machine where it listens on all, and trusts the
// worker's own certificate.
func workerClient(c *Config) (client *http.Client, base string, err error) {
	host, port, err := net.SplitHostPort(c.HTTP.Listen)
	if err != nil {
		return nil, "", fmt.Errorf("http.listen: %w", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	transport := &http.Transport{}
	scheme := "http"
	if c.HTTP.TLSCert != "" {
		scheme = "https"
		if transport.TLSClientConfig, err = trusting(c.HTTP.TLSCert); err != nil {
			return nil, "", err
		}
	}
	return &http.Client{Transport: transport}, scheme + "://" + net.JoinHostPort(host, port), nil
}

// trusting accepts the certificate in a file, under the name it is made out to: the worker is asked on an address of
// this machine, which the certificate need not name.
func trusting(file string) (*tls.Config, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the worker's certificate: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("read the worker's certificate: %s is not PEM", file)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the worker's certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	c := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if len(certificate.DNSNames) > 0 {
		c.ServerName = certificate.DNSNames[0]
	}
	return c, nil
}
