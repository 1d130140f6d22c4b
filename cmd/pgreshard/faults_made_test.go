package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

// fault is something that goes wrong at one victim.
type fault struct {
	// make begins it and returns what ends it.
	make func(s *struck, c cell) (mend func(), err error)
	// down: nobody can ask the victim's server while it lasts.
	down bool
	// orderly: a server is stopped in order.
	orderly bool
	// lasts is how long it is let last where the worker does not notice; nil: until the next strike.
	lasts func(s *struck, c cell) error
}

// strike begins a fault, lets the worker go on into it, waits until it has noticed, and ends the fault.
func (s *struck) strike(c cell) {
	s.test.Helper()
	s.mend()
	s.mend, s.ended, s.last = func() {}, 0, c
	p, f := s.worker, faults[c.fault]
	said := len(p.both.String())
	first := f.orderly && c.victim == source && points[c.point].name == "stream" // it waits until what is sent is confirmed
	if first {
		s.release(c)
	}
	mend, err := f.make(s, c)
	if err != nil {
		s.test.Fatalf("%s: %v", c, err)
	}
	s.mend = mend
	last := f.down && c.gated() == c.server() && s.resume == nil
	if !first && !last {
		s.release(c)
	}
	switch {
	case c.outcome == passes && f.lasts == nil:
		s.confirm()
		return
	case c.outcome == passes:
		if err := f.lasts(s, c); err != nil {
			s.test.Fatalf("%s: %v", c, err)
		}
	default:
		s.await("a sign that the worker has noticed", func() bool {
			return p.over() || c.mayHeal() && interrupted(p.both.String()[said:]) || c.point >= cutover && c.server() == 2 && s.gone(c)
		})
	}
	s.mend()
	s.mend = func() {}
	s.confirm()
	if !first && last {
		s.release(c)
	}
}

// mayHeal says that the worker need not end.
func (c cell) mayHeal() bool { return c.outcome != ends || c.point >= cutover }

// gone says that the worker is at the next point: a step may need nothing of a shard that is not the home.
func (s *struck) gone(c cell) bool {
	if s.next.point <= c.point {
		return false
	}
	waits, err := s.gates[s.next.gated()].reached(s.test.Context(), s.next.gate())
	return err == nil && waits
}

// interrupted says that the worker tells of work that it does again, or leaves until a shard is back.
func interrupted(said string) bool {
	return strings.Contains(said, "interrupted, trying again") || strings.Contains(said, "a shard is lost; the others go on") || strings.Contains(said, "cutover undone")
}

// to is what a fault does to the server of a cell, and what undoes it.
func to(begin, end func(m machine) error) func(*struck, cell) (func(), error) {
	return func(s *struck, c cell) (func(), error) {
		m := s.set[c.server()]
		return func() {
			if err := end(m); err != nil {
				s.test.Fatalf("after %s: %v", c, err)
			}
		}, begin(m)
	}
}

func started(m machine) error { return m.Start() }

// errNotFull says that a server goes on writing on a full disk.
var errNotFull = errors.New("the server still has room for its log")

var faults = map[string]fault{
	"kill -9": {down: true, make: func(s *struck, c cell) (func(), error) {
		if c.victim == worker {
			s.worker.kill()
			return func() {}, nil
		}
		return to(func(m machine) error { return m.Kill() }, started)(s, c)
	}},
	"immediate stop": {down: true, make: to(func(m machine) error { return m.Stop("immediate") }, started)},
	"restart": {orderly: true, make: func(s *struck, c cell) (func(), error) {
		if c.victim == worker {
			err := s.worker.cmd.Process.Signal(syscall.SIGTERM)
			<-s.worker.ended
			return func() {}, err
		}
		return to(func(m machine) error { return m.Restart("fast") }, func(machine) error { return nil })(s, c)
	}},
	"read-only":                    {down: true, orderly: true, make: to(func(m machine) error { return m.ReadOnly(true) }, func(m machine) error { return m.ReadOnly(false) })},
	"read-only by default":         {make: to(func(m machine) error { return m.set("on") }, func(m machine) error { return m.set("off") })},
	"too many connections":         {down: true, make: crowd},
	"disk full":                    {down: true, make: to(machine.fill, machine.free)},
	"COMMIT refused as a conflict": {make: refuse("40001")},
	"COMMIT refused for good":      {make: refuse("23514")},
	"connection reset":             {make: to(func(m machine) error { m.link.Refuse(true); m.link.Cut(); return nil }, func(m machine) error { m.link.Refuse(false); return nil })},
	"cut inside a message": {make: func(s *struck, c cell) (func(), error) {
		link := s.set[c.server()].link
		link.Add(inside(c))
		return link.Clear, nil
	}},
	"stall": {
		make: to(func(m machine) error { m.link.Stall(pgtest.ToServer); m.link.Stall(pgtest.ToClient); return nil },
			func(m machine) error { m.link.Resume(pgtest.ToServer); m.link.Resume(pgtest.ToClient); return nil }),
		lasts: stalled,
	},
}

// inside cuts, again and again, the messages that a cell's point is about; in a cutover whatever the worker sends.
func inside(c cell) pgtest.Rule {
	rule := pgtest.Rule{Direction: pgtest.ToServer, Every: true, Where: pgtest.Inside, Do: pgtest.Reset}
	switch points[c.point].name {
	case "copy":
		rule.Type = "CopyData"
	case "stream":
		rule.Type = "Bind"
	default:
		return rule
	}
	if c.victim == sourceLink {
		rule.Direction = pgtest.ToClient
		if rule.Type == "Bind" {
			rule.Type = "XLogData"
		}
	}
	return rule
}

// stalled lets nothing pass until, where the worker cannot end the freeze it is in, that has run out and writers write.
func stalled(s *struck, c cell) error {
	name := points[c.point].name
	if slices.Contains([]string{"drain", "finish", "verify"}, name) || name == "seal" && c.victim != shardLink { // which a seal does without
		ctx, cancel := context.WithTimeout(s.test.Context(), patience)
		defer cancel()
		return s.load.Committed(ctx, 20)
	}
	select {
	case <-time.After(1500 * time.Millisecond):
		return nil
	case <-s.test.Context().Done():
		return s.test.Context().Err()
	}
}

// refuse makes the COMMITs of the bookkeeping, and with them those of rows, fail on a shard.
func refuse(code string) func(*struck, cell) (func(), error) {
	return func(s *struck, c cell) (func(), error) {
		g := s.gates[c.server()]
		g.refuse(s.test, code)
		return func() { g.refuse(s.test, "") }, nil
	}
}

// admin runs statements on the server.
func (m machine) admin(statements ...string) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, m.URL("postgres"))
	if err != nil {
		return err
	}
	defer pg.Close(conn)
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// set is the server's default_transaction_read_only.
func (m machine) set(readOnly string) error {
	return m.admin("set default_transaction_read_only = off", "alter system set default_transaction_read_only = "+readOnly, "select pg_reload_conf()")
}

// fill takes the disk's room, and lets the server write log until it wants some.
func (m machine) fill() error {
	if err := m.Fill(context.Background()); err != nil {
		return err
	}
	for range 20 {
		if err := m.admin("select pg_logical_emit_message(false, 'fill', '')", "select pg_switch_wal()"); err != nil {
			return nil
		}
	}
	return errNotFull
}

// free gives the room back and starts the server, which may have given up.
func (m machine) free() error {
	if err := m.Free(context.Background()); err != nil {
		return err
	}
	if err := m.Kill(); err != nil {
		return err
	}
	return m.Start()
}

// crowd ends the worker's sessions on a server and takes all its connections.
func crowd(s *struck, c cell) (func(), error) {
	m := s.set[c.server()]
	var all []*pgx.Conn
	mend := func() {
		for _, conn := range all {
			pg.Close(conn)
		}
	}
	for {
		conn, err := pgx.Connect(s.test.Context(), m.URL("postgres"))
		if err == nil {
			all = append(all, conn)
			continue
		}
		if pg.Code(err) != "53300" || len(all) == 0 {
			return mend, err
		}
		var left int
		err = all[0].QueryRow(s.test.Context(), `select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name like 'pgreshard%' and backend_type = 'client backend'`).Scan(&left)
		if err != nil || left == 0 {
			return mend, err
		}
	}
}
