package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	tokenVariable        = "PGRESHARD_TOKEN"
	metricsTokenVariable = "PGRESHARD_METRICS_TOKEN"
	stateVariable        = "PGRESHARD_STATE_DIR"
	tokenFile            = "token"
)

// stateDir is where a worker leaves what the commands on the same machine need.
func stateDir(name string) (string, error) {
	if dir := os.Getenv(stateVariable); dir != "" {
		return dir, nil
	}
	base := os.Getenv("XDG_STATE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", usage("set "+stateVariable, "there is no directory to keep state in: %w", err)
		}
		base = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(base, "pgreshard", name), nil
}

func metricsToken() string { return os.Getenv(metricsTokenVariable) }

// readToken is the token of the worker of a move: the environment's, else the one the worker left; empty where there
// is none.
func readToken(name string) (string, error) {
	if token := os.Getenv(tokenVariable); token != "" {
		return token, nil
	}
	dir, err := stateDir(name)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(dir, tokenFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", usage("run as the user the worker runs as, or set "+tokenVariable, "read the worker's token: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// makeToken is readToken, and makes and leaves a token where there is none.
func makeToken(name string) (string, error) {
	token, err := readToken(name)
	if err != nil || token != "" {
		return token, err
	}
	dir, err := stateDir(name)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", usage("set "+stateVariable, "make the state directory: %w", err)
	}
	token = rand.Text()
	// Exclusively: two workers that start at once must not end with two tokens.
	f, err := os.OpenFile(filepath.Join(dir, tokenFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return readToken(name)
	}
	if err != nil {
		return "", usage("set "+stateVariable, "leave the token: %w", err)
	}
	_, err = fmt.Fprintln(f, token)
	return token, errors.Join(err, f.Close())
}
