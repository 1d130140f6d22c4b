package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const startLimit = 60 * time.Second

// stopSignals are pg_ctl's modes.
var stopSignals = map[string]syscall.Signal{"smart": syscall.SIGTERM, "fast": syscall.SIGINT, "immediate": syscall.SIGQUIT}

// Start starts a stopped server on the port it had and waits until it answers.
func (c *Cluster) Start() error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	return c.start(ctx)
}

// Stop ends the server in one of pg_ctl's modes (smart, fast, immediate) and waits until it has gone. The directory
// stays, for Start.
func (c *Cluster) Stop(mode string) error {
	signal, ok := stopSignals[mode]
	if !ok {
		return fmt.Errorf("stop mode %q: smart, fast and immediate exist", mode)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pid == 0 {
		return nil
	}
	if err := syscall.Kill(c.pid, signal); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	return c.reap()
}

// Restart is Stop in the mode given and Start.
func (c *Cluster) Restart(mode string) error {
	if err := c.Stop(mode); err != nil {
		return err
	}
	return c.Start()
}

// ReadOnly restarts the server as a standby that follows nobody, which refuses every write, and back as the primary it
// was, on the same timeline.
func (c *Cluster) ReadOnly(on bool) error {
	if err := c.Stop("fast"); err != nil {
		return err
	}
	command := "rm -f "
	if on {
		command = "touch "
	}
	if _, err := c.keep.Do(context.Background(), command+quote(filepath.Join(c.DataDir, "standby.signal"))); err != nil {
		return err
	}
	return c.Start()
}

// Kill ends every process of the server with SIGKILL, as a machine that loses power does (but what the kernel holds in
// its cache is kept).
func (c *Cluster) Kill() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pid == 0 {
		return nil
	}
	// Held still, the postmaster cannot make new children between the listing and its end.
	_ = syscall.Kill(c.pid, syscall.SIGSTOP)
	children := childrenOf(c.pid)
	if err := syscall.Kill(c.pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH { // it may have ended by itself
		return fmt.Errorf("kill the server: %w", err)
	}
	for _, child := range children {
		_ = syscall.Kill(child, syscall.SIGKILL)
	}
	err := c.reap()
	for _, child := range children {
		for !gone(child) {
			time.Sleep(time.Millisecond)
		}
	}
	return err
}

// Running says whether the server was started and not stopped since.
func (c *Cluster) Running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pid != 0
}

// reap waits for the postmaster's end; the caller holds mu.
func (c *Cluster) reap() error {
	_, err := c.keep.Do(context.Background(), "wait $pid; pid=")
	c.pid = 0
	return err
}

// start runs the postmaster as a child of the keeper and connects until it answers.
func (c *Cluster) start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pid != 0 {
		return errors.New("the server runs already")
	}
	pid, err := c.keep.Do(ctx, quote(c.Bin("postgres"), "-D", c.DataDir)+" & pid=$!")
	if err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	c.pid = pid
	if err := c.awaitReady(ctx); err != nil {
		_ = syscall.Kill(pid, syscall.SIGQUIT)
		_ = c.reap()
		return fmt.Errorf("start the server: %w\n%s", err, c.Log())
	}
	return nil
}

// awaitReady connects until a connection is accepted, the process has gone, or the time is up.
func (c *Cluster) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgconn.Connect(ctx, c.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		if gone(c.pid) {
			return errors.New("it ended at once")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// childrenOf lists the processes a process has started, from /proc; none where there is no /proc.
func childrenOf(pid int) []int {
	var children []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		if _, parent, ok := processStat(path); ok && parent == pid {
			child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			children = append(children, child)
		}
	}
	return children
}

// gone says that a process has ended, reaped or not.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) == syscall.ESRCH {
		return true
	}
	state, _, ok := processStat(fmt.Sprintf("/proc/%d/stat", pid))
	return ok && (state == "Z" || state == "X")
}

// processStat reads state and parent out of "pid (name) state parent …"; the name may hold anything but ends at the
// last parenthesis.
func processStat(path string) (state string, parent int, ok bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", 0, false
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 2 {
		return "", 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return fields[0], parent, err == nil
}
