package move

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/copier"
	"pgreshard/lookup"
	"pgreshard/sink"
	"pgreshard/verify"
)

// VerifyNow compares both sides exactly as of one position of each source, while applications write and the streams go on:
// for the worker of this process, which Migrate runs in another goroutine. Differences are in the report and are recorded:
// until a later comparison finds none there is no cutover.
func (m *Move) VerifyNow(ctx context.Context) (*verify.Report, error) {
	m.verifying.Lock()
	defer m.verifying.Unlock()
	report, _, err := m.verifyNow(ctx, 0)
	return report, err
}

// verifyNow also says which tables were compared. At most limit rows of a table are named, 0: verify's own bound.
func (m *Move) verifyNow(whole context.Context, limit int) (report *verify.Report, tables []verify.Table, err error) {
	ctx, cancel := context.WithCancel(whole)
	defer cancel()
	defer func() {
		if whole.Err() == nil && (errors.Is(err, context.Canceled) || errors.Is(err, sink.ErrEnded)) {
			err = &NotReadyError{Because: []string{"the streams ended while they were compared"}, Compare: true}
		}
	}()
	m.mu.Lock()
	followed := len(m.followers) > 0
	m.stopComparing = cancel
	m.mu.Unlock()
	if state := m.currentState(); state != m.steady() {
		return nil, nil, &NotReadyError{Because: []string{"the move is " + state + ", and can be compared beside writers while it is " + m.steady()}, Compare: true}
	}
	if !followed {
		return nil, nil, errNotFollowed
	}
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return nil, nil, err
	}
	request, err := m.verification(ctx, inv)
	if err != nil {
		return nil, nil, err
	}
	request.Limit = limit
	if err := m.untilYoung(ctx); err != nil { // the account's slots wait for them too
		return nil, nil, err
	}
	c := &comparison{Move: m, inv: inv, proof: request, patience: momentAttempts * quietMost, beyond: true}
	c.since = m.account(ctx, inv, request.Tables)
	return c.everything(ctx)
}

// comparingNow says so in the status, where what was found last stays until it is known better.
func (m *Move) comparingNow() (was VerifyStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was = m.verified
	m.verified.State = "running"
	return was
}

// compareAt compares the rows of both sides as they were at a moment.
func (m *Move) compareAt(ctx context.Context, inv *inventory, request verify.Request, mo *moment) (*verify.Report, error) {
	request = mo.under(request)
	// Each source was looked at a moment of its own, so that of a table that an application writes on one after another they
	// may differ now; the freeze, in which nobody writes, compares them.
	request.OneSource = true
	var err error
	if request.Place, err = m.placerThen(ctx, inv, mo); err != nil {
		return nil, err
	}
	report, err := verify.Run(ctx, request)
	if report != nil {
		report.At = mo.positions()
	}
	return report, err
}

// placerThen places rows by what the mapping tables were at a moment.
func (m *Move) placerThen(ctx context.Context, inv *inventory, mo *moment) (verify.Placer, error) {
	dest, err := m.destCatalog(ctx)
	then := &momentAsker{shards: mo.shards, router: sink.Router{Lookups: lookup.New(m.LookupBytes)}}
	return m.placing(inv, dest, &then.router, func(t *sink.Table) lookup.Asker { return then.of(t) }), err
}

// momentAsker translates keys as the mapping tables were at a moment.
type momentAsker struct {
	router sink.Router
	shards []*copier.Snapshot
	mu     sync.Mutex // guards the snapshots' sessions
}

func (a *momentAsker) of(t *sink.Table) lookup.Asker {
	shards := a.shards[:1]
	if t.AskAll {
		shards = a.shards
	}
	return lookup.AskerFunc(func(ctx context.Context, q *lookup.Query, keys [][]byte) ([]lookup.Answer, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		total := make([]lookup.Answer, len(keys))
		for _, s := range shards {
			answers, err := askAndLetGo(ctx, s.Conn().PgConn(), q, keys)
			if err != nil {
				return nil, err
			}
			lookup.AddUp(total, answers)
		}
		return total, nil
	})
}

// askAndLetGo asks inside a transaction that goes on, and keeps no lock: a TRUNCATE that the stream brings would wait for it, and what else
// is asked of the table behind that.
func askAndLetGo(ctx context.Context, conn *pgconn.PgConn, q *lookup.Query, keys [][]byte) ([]lookup.Answer, error) {
	run := func(sql string) error {
		_, err := conn.Exec(ctx, sql).ReadAll()
		return err
	}
	if err := run("savepoint asking"); err != nil {
		return nil, err
	}
	answers, err := lookup.Ask(ctx, conn, q, keys)
	return answers, errors.Join(err, run("rollback to savepoint asking; release savepoint asking"))
}

// conclude keeps what a comparison of some tables found, in memory and on the home. Of those that were compared by what had
// changed in them, and of the others, all rows count as compared when everything was.
func (m *Move) conclude(ctx context.Context, report *verify.Report, tables []verify.Table, whole ...string) error {
	now := time.Now().UTC()
	v := VerifyStatus{State: "clean", At: report.At, Finished: &now, Differences: report.Differences(), Whole: whole}
	m.mu.Lock()
	if m.compared == nil {
		m.compared = map[string]int64{}
	}
	for i, t := range report.Tables {
		if tables[i].Only == nil {
			m.compared[t.Table] = t.Rows
		} else {
			v.Changed += t.Rows
		}
	}
	for _, rows := range m.compared {
		v.Rows += rows
	}
	m.mu.Unlock()
	if !report.Clean() {
		v.State = "different"
		v.Tables = report.Unclean()
	}
	m.setVerified(v)
	return m.setDetail(ctx, verifiedKey, v)
}

const verifiedKey = "verified"

// lastVerified reads what the last comparison found, by whichever worker.
func (m *Move) lastVerified(ctx context.Context) error {
	v := VerifyStatus{State: "none"}
	var p *proving
	if err := errors.Join(m.detail(ctx, verifiedKey, &v), m.detail(ctx, provingKey, &p)); err != nil {
		return err
	}
	m.setVerified(v)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.proving = p
	return nil
}

// differenceOf is the error of a comparison that found something, nil where it found nothing.
func differenceOf(report *verify.Report) error {
	if report.Clean() {
		return nil
	}
	var detail []string
	for _, t := range report.Tables {
		if t.State != verify.Clean {
			detail = append(detail, fmt.Sprintf("%s: %s, %d missing, %d extra, %d different, %d doubled, %d misplaced",
				t.Table, t.State, t.Missing, t.Extra, t.Different, t.Doubled, t.Misplaced))
		}
	}
	e := &DifferenceError{Tables: report.Unclean(), Detail: strings.Join(detail, "; ")}
	if onlySources(report) {
		return fmt.Errorf("%w: %w", errSourcesApart, e)
	}
	return e
}

// mendedSince compares again, beside the writers, where the last comparison found differences: until it finds none nothing
// is frozen.
func (m *Move) mendedSince(ctx context.Context) error {
	m.mu.Lock()
	different := m.verified.differs()
	m.mu.Unlock()
	if !different || !m.MustVerify {
		return nil
	}
	report, _, err := m.verifyNow(ctx, 0)
	if err != nil {
		return err
	}
	return differenceOf(report)
}
