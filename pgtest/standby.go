package pgtest

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Standby makes a physical standby that ends with the test.
func (c *Cluster) Standby(t testing.TB) *Cluster {
	t.Helper()
	s, err := c.NewStandby(t.Context(), Options{})
	if err != nil {
		t.Fatalf("make a standby: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}

// NewStandby makes a physical standby that streams from the cluster through a slot of its own (`standby_1`, …), which
// is also its application_name, for synchronous_standby_names. Of the options the settings and Durable count.
func (c *Cluster) NewStandby(ctx context.Context, o Options) (*Cluster, error) {
	s, err := newCluster(c.in, baseDir(o.Durable), 0)
	if err != nil {
		return nil, err
	}
	name := "standby_" + strconv.FormatInt(c.standbys.Add(1), 10)
	primary := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres application_name=%s", c.Port, name)
	backup := quote(c.Bin("pg_basebackup"), "-D", s.DataDir, "-d", primary, "-C", "-S", name, "-X", "stream", "-c", "fast", "--no-sync")
	if _, err := s.keep.Do(ctx, backup); err != nil {
		s.Close()
		return nil, fmt.Errorf("pg_basebackup: %w", err)
	}
	// Not -R: a newer version's pg_basebackup writes options there that an older server does not know.
	if _, err := s.keep.Do(ctx, "touch "+quote(filepath.Join(s.DataDir, "standby.signal"))); err != nil {
		s.Close()
		return nil, err
	}
	follow := map[string]string{"primary_conninfo": primary, "primary_slot_name": name}
	maps.Copy(follow, o.Settings)
	o.Settings = follow
	if err := s.configureAndStart(ctx, o); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Promote makes a standby a primary on a new timeline and waits until it accepts writes.
func (c *Cluster) Promote(ctx context.Context) error {
	err := c.asAdmin(ctx, func(conn *pgx.Conn) error {
		var promoted bool
		if err := conn.QueryRow(ctx, `select pg_promote(true, 60)`).Scan(&promoted); err != nil {
			return err
		}
		if !promoted {
			return fmt.Errorf("it is still in recovery:\n%s", c.Log())
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("promote %s: %w", filepath.Base(c.keep.Dir), err)
	}
	return nil
}

// Position is the end of the log a primary has written, or a standby has replayed, as pg_lsn text.
func (c *Cluster) Position(ctx context.Context) (lsn string, err error) {
	const position = `select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_insert_lsn() end::text`
	err = c.asAdmin(ctx, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, position).Scan(&lsn) })
	return lsn, err
}

// CatchUp waits until a standby has replayed the log up to a position.
func (c *Cluster) CatchUp(ctx context.Context, lsn string) error {
	return c.asAdmin(ctx, func(conn *pgx.Conn) error {
		for {
			var there bool
			if err := conn.QueryRow(ctx, `select pg_last_wal_replay_lsn() >= $1::pg_lsn`, lsn).Scan(&there); err != nil || there {
				return err
			}
			if _, err := conn.Exec(ctx, `select pg_sleep(0.002)`); err != nil {
				return err
			}
		}
	})
}
