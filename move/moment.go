package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/copier"
	"pgreshard/pg"
	"pgreshard/replicator"
	"pgreshard/sink"
	"pgreshard/verify"
)

// moment is one state of both sides that stays readable: the sources as of a position each, and the shards with exactly
// what was committed before those positions.
type moment struct {
	at              []pg.LSN // by source
	sources, shards []*copier.Snapshot
}

func (mo *moment) close() {
	for _, s := range append(mo.sources, mo.shards...) {
		if s != nil {
			s.Close()
		}
	}
}

// under is a request whose nodes are read as of the moment; nil: as they are.
func (mo *moment) under(request verify.Request) verify.Request {
	if mo == nil {
		return request
	}
	request.Sources, request.Shards = slices.Clone(request.Sources), slices.Clone(request.Shards)
	for n, s := range mo.sources {
		request.Sources[n].Snapshot = s.ID
	}
	for n, s := range mo.shards {
		request.Shards[n].Snapshot = s.ID
	}
	return request
}

// positions are those of the sources, in words.
func (mo *moment) positions() (at []string) {
	for _, lsn := range mo.at {
		at = append(at, lsn.String())
	}
	return at
}

var errNotFollowed = &NotReadyError{Because: []string{"the move does not follow its sources now"}, Compare: true}

const (
	stillMost      = 10 * time.Second // for which the streams may stand still
	momentAttempts = 5
	quietMost      = time.Minute // waited for old transactions, before anything stands still
)

// takeMoment holds the streams still, makes a temporary slot on every source, whose snapshot and position belong together,
// lets the streams go on up to exactly there, and takes a snapshot of every shard. Making a slot waits for every transaction
// that is open on its server, so old ones are waited for first. While the streams stand still it runs meanwhile, which may be
// nil, with a context that ends when they have stood still for long enough.
func (m *Move) takeMoment(ctx context.Context, meanwhile func(context.Context, *moment) error) (*moment, error) {
	for attempt := 1; ; attempt++ {
		mo, err := m.tryMoment(ctx, meanwhile)
		var blocked *replicator.BlockedError
		again := errors.Is(err, sink.ErrEnded) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &blocked) || pg.Transient(err)
		if err == nil || ctx.Err() != nil || !again || attempt == momentAttempts {
			return mo, err
		}
		m.log.Info("the streams could not be held at one position, trying again", "attempt", attempt, "reason", err.Error())
		if err := sleep(ctx, time.Second); err != nil {
			return nil, err
		}
	}
}

func (m *Move) tryMoment(ctx context.Context, meanwhile func(context.Context, *moment) error) (mo *moment, err error) {
	if err := m.untilYoung(ctx); err != nil {
		return nil, err
	}
	m.still.Lock() // no freeze meanwhile
	defer m.still.Unlock()
	m.mu.Lock()
	followers := m.followers
	m.mu.Unlock()
	if len(followers) == 0 {
		return nil, errNotFollowed
	}
	mo = &moment{at: make([]pg.LSN, len(m.Source.Shards)), sources: make([]*copier.Snapshot, len(m.Source.Shards)), shards: make([]*copier.Snapshot, len(m.Destination.Shards))}
	defer func() {
		if err != nil {
			mo.close()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, stillMost)
	defer cancel()
	paused := make([]*sink.Paused, len(followers))
	defer func() {
		for _, p := range paused {
			if p != nil {
				p.Resume()
			}
		}
	}()
	began := time.Now()
	steps := []func(context.Context, int) error{
		func(ctx context.Context, n int) (err error) {
			paused[n], err = followers[n].sink.Pause(ctx)
			return err
		},
		func(ctx context.Context, n int) error { return m.fix(ctx, n, mo) },
		func(ctx context.Context, n int) error { return paused[n].To(ctx, mo.at[n]) },
	}
	for _, step := range steps {
		if err := atOnce(ctx, len(followers), step); err != nil {
			return mo, err
		}
	}
	err = atOnce(ctx, len(mo.shards), func(ctx context.Context, n int) (err error) {
		mo.shards[n], err = copier.NewSnapshot(ctx, m.Destination.Shards[n], m.app())
		return err
	})
	if err == nil && meanwhile != nil {
		err = meanwhile(ctx, mo)
	}
	m.log.Info("both sides are held at one position", "stood_still_seconds", time.Since(began).Seconds())
	return mo, err
}

// fix takes the state of one source. The message behind it has the stream come by.
func (m *Move) fix(ctx context.Context, n int, mo *moment) error {
	slot, err := replicator.CreateSlot(ctx, m.Source.Shards[n], m.slot(n)+"_verify", true)
	if err != nil {
		return err
	}
	defer slot.Close()
	mo.at[n] = slot.ConsistentPoint
	if mo.sources[n], err = copier.ImportSnapshot(ctx, m.Source.Shards[n], m.app(), slot.Snapshot); err != nil {
		return err
	}
	return m.source(ctx, n, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `select pg_logical_emit_message(true, $1, 'verify')`, sink.MessagePrefix)
		return err
	})
}

// Transactions that making a slot would wait for: in any database, other than ours.
const selectOld = `
select 'pid ' || pid || ' of ' || coalesce(usename, '') || ' in database ' || coalesce(datname, '') from pg_stat_activity
 where backend_xid is not null and xact_start < clock_timestamp() - interval '1 second' and pid <> pg_backend_pid()
union all
select format('prepared transaction %L in database %s', gid, database) from pg_prepared_xacts`

// untilYoung waits until no transaction older than a second that has written is open on any source's server.
func (m *Move) untilYoung(ctx context.Context) error {
	for end := time.Now().Add(quietMost); ; {
		old := make([][]string, len(m.Source.Shards))
		err := m.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
			rows, err := conn.Query(ctx, selectOld)
			if err != nil {
				return err
			}
			old[n], err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
		if err != nil {
			return err
		}
		var all []string
		for n, list := range old {
			for _, who := range list {
				all = append(all, fmt.Sprintf("%s on source %d", who, n))
			}
		}
		switch {
		case len(all) == 0:
			return nil
		case time.Now().After(end):
			return &NotReadyError{Because: []string{"transactions older than a second are open, for which a snapshot would have to wait: " + strings.Join(all, "; ")}, Compare: true}
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}
