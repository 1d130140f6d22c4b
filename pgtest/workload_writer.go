package pgtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"pgreshard/pg"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// writer is one client of the application with the rows that are its own.
type writer struct {
	load   *Workload
	number int // from 1; its ids are this number modulo stripe
	random *rand.Rand
	conns  map[string]*pgx.Conn // by address
	stats  writerStats

	rows    map[string][]*liveRow // by table
	tenants []int64               // that it made
	next    int64                 // of its ids, in stripes
}

// liveRow is a row that exists as far as its writer was told.
type liveRow struct {
	id      int64
	tenant  int64
	version state
	items   []state // of an order, by line; absent where the line was deleted
	code    string  // of a country
	serial  state   // of a country: versions given so far, for one that comes back
}

func newWriter(load *Workload, number int) *writer {
	return &writer{
		load: load, number: number,
		random: rand.New(rand.NewPCG(load.o.Seed, uint64(number))),
		conns:  map[string]*pgx.Conn{}, rows: map[string][]*liveRow{},
	}
}

// transaction is one piece of work, made of absolute values so that it may be done again.
type transaction struct {
	table   string // with tenant: what Target is asked
	tenant  int64
	move    int64 // where not 0, a tenant that must be on the same shard
	run     func(ctx context.Context, tx pgx.Tx) error
	effects []effect
	// committed takes the new state over; abandoned forgets the rows, because nobody knows their state.
	committed, abandoned func()
	rollback             bool
}

// errNotFound says that a writer's own row is not where the layout says it is.
var errNotFound = errors.New("a row that was acknowledged is not there")

const (
	retryPause      = 20 * time.Millisecond // as docs/application.md advises
	transactionMost = 60 * time.Second
)

// run does one transaction after another until the context ends.
func (w *writer) run(ctx context.Context) error {
	defer w.disconnect()
	pace := w.pacer()
	for pace(ctx) {
		if w.random.IntN(40) == 0 {
			if err := w.reference(ctx); err != nil {
				return err
			}
			continue
		}
		if t := w.choose(ctx); t != nil {
			if err := w.do(ctx, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// After restful a paced writer slows down, by as much again every tiring: a stream that does not keep up on a machine busy
// with other things comes to the end all the same. How fast streams are is for benchmarks to say.
const (
	restful = 8 * time.Second
	tiring  = 4 * time.Second
)

// pacer spaces transactions evenly; time lost in a freeze is not made up for. It says false when the context has ended.
func (w *writer) pacer() func(context.Context) bool {
	began := time.Now()
	due := began.Add(time.Duration(w.random.Int64N(w.load.pause.Load() + 1)))
	return func(ctx context.Context) bool {
		alive := sleep(ctx, time.Until(due))
		tired := max(0, time.Since(began)-restful)
		if w.load.o.Tireless {
			tired = 0
		}
		due = due.Add(time.Duration(float64(w.load.pause.Load()) * (1 + tired.Seconds()/tiring.Seconds())))
		if now := time.Now(); due.Before(now) {
			due = now
		}
		return alive
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// do repeats a transaction until it is acknowledged, of unknown outcome, or no longer wanted.
func (w *writer) do(ctx context.Context, t *transaction) error {
	for {
		url, err := w.target(ctx, t)
		if err == nil {
			err = w.attempt(ctx, url, t)
		}
		switch {
		case err == nil && t.rollback:
			w.stats.count(&w.stats.Rollbacks)
			return nil
		case err == nil:
			w.load.ledger.acknowledge(t.effects)
			w.stats.commit()
			t.committed()
			return nil
		case errors.Is(err, errUnknown):
			w.load.ledger.doubt(t.effects)
			w.stats.count(&w.stats.Unknown)
			t.abandoned()
			return nil
		case errors.Is(err, errNotFound):
			w.load.ledger.miss(err.Error())
			t.abandoned()
			return nil
		case ctx.Err() != nil, errors.Is(err, errSkip):
			return nil
		case url != "" && !w.again(err):
			return err
		}
		w.stats.count(&w.stats.Retries)
		sleep(ctx, retryPause)
	}
}

// target is where a transaction runs.
func (w *writer) target(ctx context.Context, t *transaction) (string, error) {
	url, err := w.load.o.Target(ctx, t.table, t.tenant)
	if err == nil && t.move != 0 {
		var other string
		if other, err = w.load.o.Target(ctx, t.table, t.move); err == nil && other != url {
			err = errSkip
		}
	}
	return url, err
}

// again counts a refusal and says whether another attempt may succeed.
func (w *writer) again(err error) bool {
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Code == "25006" {
		w.stats.count(&w.stats.Refused)
	}
	const diskFull = "53100"
	return pg.Transient(err) || pg.Code(err) == diskFull || errors.Is(err, context.DeadlineExceeded)
}

// errUnknown says that a COMMIT was sent and no answer came.
var errUnknown = errors.New("the outcome of a commit is unknown")

// attempt does a transaction once. The end of ctx does not interrupt it, because that would leave outcomes unknown.
func (w *writer) attempt(ctx context.Context, url string, t *transaction) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transactionMost)
	defer cancel()
	conn, err := w.connect(ctx, url)
	if err != nil {
		return err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		w.drop(url)
		return err
	}
	if w.load.o.Locks && w.number%2 == 0 && t.tenant != 0 {
		_, err = tx.Exec(ctx, `select from tenants where id = $1 for update`, t.tenant)
	}
	if err == nil {
		err = t.run(ctx, tx)
	}
	if err != nil {
		if tx.Rollback(ctx) != nil {
			w.drop(url)
		}
		return err
	}
	if t.rollback {
		if err = tx.Rollback(ctx); err != nil {
			w.drop(url)
		}
		return err
	}
	err = tx.Commit(ctx)
	var server *pgconn.PgError
	switch {
	case err == nil, errors.Is(err, pgx.ErrTxCommitRollback), errors.As(err, &server) && server.Severity == "ERROR":
		return err
	}
	w.drop(url)
	return errors.Join(errUnknown, err)
}

const connectMost = 5 * time.Second

// connect keeps one session per address.
func (w *writer) connect(ctx context.Context, url string) (*pgx.Conn, error) {
	if conn := w.conns[url]; conn != nil && !conn.IsClosed() {
		return conn, nil
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["application_name"] = fmt.Sprintf("pgtest writer %d", w.number)
	config.ConnectTimeout = connectMost
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	w.conns[url] = conn
	return conn, nil
}

func (w *writer) drop(url string) {
	if conn := w.conns[url]; conn != nil {
		pg.Close(conn)
		delete(w.conns, url)
	}
}

func (w *writer) disconnect() {
	for url := range w.conns {
		w.drop(url)
	}
}

// newID is an id no other writer gives.
func (w *writer) newID() int64 {
	w.next++
	return w.next*stripe + int64(w.number)
}
