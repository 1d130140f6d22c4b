package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Options says what kind of cluster is wanted; the zero value is the newest version with its files in memory.
type Options struct {
	// Version is the server's major version; 0 is what PGRESHARD_TEST_SOURCE names, else the newest on this machine.
	Version int
	// Settings are added to postgresql.conf, after and so above the package's own.
	Settings map[string]string
	// Durable keeps fsync and full_page_writes on and the files on disk, as a real server has them.
	Durable bool
	// Foreign gives the cluster a system identifier of its own; all others are copies of one.
	Foreign bool
	// Room puts the files on a file system of their own of so many bytes, which Fill fills. It needs Linux and root.
	Room int64
}

// Cluster is one PostgreSQL server with its own data directory. It listens on 127.0.0.1 and on a unix socket and
// trusts everybody; `postgres` is its superuser. It ends with the process at the latest.
type Cluster struct {
	Port      int
	SocketDir string
	DataDir   string
	Version   int // major

	in   installation
	keep *keeper

	mu  sync.Mutex
	pid int // of the running postmaster, 0 while it is stopped

	standbys atomic.Int64 // made so far
}

// ownSettings make a cluster fit for many parallel tests of logical replication.
var ownSettings = map[string]string{
	"listen_addresses":                "127.0.0.1",
	"wal_level":                       "logical",
	"max_connections":                 "300",
	"max_wal_senders":                 "50",
	"max_replication_slots":           "50",
	"max_prepared_transactions":       "20",
	"max_worker_processes":            "40",
	"max_logical_replication_workers": "24",
	"max_locks_per_transaction":       "256",
	"shared_buffers":                  "64MB",
	"min_wal_size":                    "32MB",
	"max_wal_size":                    "512MB",
	"dynamic_shared_memory_type":      "mmap", // in the directory, so that nothing outlives a killed server
	"log_line_prefix":                 "%m [%p] %a %u@%d ",
	"logging_collector":               "off",
}

// Start makes a cluster that ends with the test.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	c, err := New(t.Context(), o)
	if err != nil {
		t.Fatalf("start a cluster: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// New makes and starts a cluster. The context bounds the start only.
func New(ctx context.Context, o Options) (*Cluster, error) {
	in, err := findInstallation(o.Version)
	if err != nil {
		return nil, err
	}
	base := baseDir(o.Durable)
	prepare := templateData
	if o.Foreign {
		prepare = initialise
	}
	data, err := prepare(ctx, in, base)
	if err != nil {
		return nil, err
	}
	c, err := newCluster(in, base, o.Room)
	if err != nil {
		return nil, err
	}
	if _, err := c.keep.Do(ctx, quote("cp", "-a", data, c.DataDir)); err != nil {
		c.Close()
		return nil, fmt.Errorf("copy the initial data directory: %w", err)
	}
	if err := c.configureAndStart(ctx, o); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// newCluster makes the directory of a cluster, with nothing in it yet.
func newCluster(in installation, base string, room int64) (*Cluster, error) {
	keep, err := newKeeper(base, room)
	if err != nil {
		return nil, err
	}
	return &Cluster{
		in: in, keep: keep, Version: in.Major,
		SocketDir: keep.Dir, DataDir: filepath.Join(keep.Dir, "data"),
	}, nil
}

// baseDir is memory where there is room enough, unless the files must be on disk.
func baseDir(durable bool) string {
	const memory, room = "/dev/shm", 6 << 30
	if !durable && freeBytes(memory) > room && freeMemory() > room {
		return memory
	}
	return os.TempDir()
}

// configureAndStart writes the settings and starts the server on a free port, trying others when somebody was faster.
func (c *Cluster) configureAndStart(ctx context.Context, o Options) error {
	var err error
	for range 5 {
		if c.Port, err = freePort(); err != nil {
			return err
		}
		if err = c.configure(o); err != nil {
			return fmt.Errorf("write the cluster's settings: %w", err)
		}
		if err = c.start(ctx); err == nil || !strings.Contains(err.Error(), "in use") {
			return err
		}
	}
	return err
}

func (c *Cluster) configure(o Options) error {
	settings := maps.Clone(ownSettings)
	settings["port"] = strconv.Itoa(c.Port)
	settings["unix_socket_directories"] = c.SocketDir
	if !o.Durable {
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
	}
	maps.Copy(settings, o.Settings)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	f, err := os.OpenFile(c.keep.path(filepath.Join(c.DataDir, "postgresql.conf")), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(b.String())
	return errors.Join(err, f.Close())
}

// freePort finds a port below the range the kernel hands to outgoing connections, so that it is still free when a
// stopped server wants it back.
func freePort() (int, error) {
	var last error
	for range 100 {
		port := 10000 + rand.IntN(22000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, l.Close()
		}
		last = err
	}
	return 0, fmt.Errorf("no free port: %w", last)
}

// Bin is the path of one of the version's own programs, such as pg_dump, or of a newer version's where the server's
// package has none.
func (c *Cluster) Bin(tool string) string { return c.in.program(tool) }

// Addr is where the server listens, as host:port.
func (c *Cluster) Addr() string { return fmt.Sprintf("127.0.0.1:%d", c.Port) }

// URL addresses one database of the cluster as the superuser.
func (c *Cluster) URL(database string) string { return urlOf(c.Addr(), database) }

// Log is the end of the server's log.
func (c *Cluster) Log() string { return c.keep.LogTail() }

// Close stops the server at once and removes its directory. It may be called again.
func (c *Cluster) Close() {
	c.keep.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pid = 0
}
