package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/verify"
)

// What changes while everything is compared beside the writers is compared again, beside them too, until so few rows are left
// that the freeze compares them in milliseconds.
const (
	fewChanges = 2_000
	mostRounds = 5
)

// compareAhead compares beside the writers what is not known to be equal, so that the freeze compares just what changes from then on.
// Where that cannot be done exactly, the freeze compares everything of a table, or of all, as it is told why; then how long that takes
// is tried.
func (c *cutover) compareAhead(ctx context.Context) (err error) {
	if !c.MustVerify {
		return nil
	}
	if c.proof, err = c.verification(ctx, c.inv); err != nil {
		return err
	}
	if err := c.writersEnded(ctx); err != nil {
		return err
	}
	if err := c.setDetail(ctx, totalsKey, nil); err != nil { // of a switch that was rolled back
		return err
	}
	c.spares.close() // those of an earlier attempt may have ended with their server, and each would cost an attempt
	c.proven = &comparison{Move: c.Move, inv: c.inv, proof: c.proof, patience: slotPatience}
	c.proven.since = c.account(ctx, c.inv, c.proof.Tables)
	if err = c.proven.since.lostBy(); err == nil {
		err = c.compareRounds(ctx)
	}
	var differs *DifferenceError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &differs):
		return err
	case err != nil:
		c.proven.since.lose(err)
		if err := c.mendedSince(ctx); err != nil {
			return err
		}
	}
	tables, whole := c.proven.left(c.proven.since.now())
	c.log.Info("what the freeze compares of each table is what changes from now on", "but_whole", strings.Join(whole, "; "))
	return c.rehearse(ctx, slices.DeleteFunc(tables, func(t verify.Table) bool { return t.Only != nil }))
}

// compareRounds compares what is not yet known to be equal, each time what has changed while it was compared the last time.
func (c *cutover) compareRounds(ctx context.Context) error {
	for round := range mostRounds {
		if keys, whole := c.proven.since.many(); round > 0 && keys <= fewChanges && !whole {
			return nil
		}
		_, report, err := c.proven.round(ctx, round == 0)
		if err == nil {
			err = cmp.Or(differenceOf(report), c.proven.since.lostBy())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rehearse compares tables once while writes go on, for what that leaves behind and not for what it finds: sessions are open and
// know the tables when the freeze begins, and how long the comparison takes is known.
func (c *cutover) rehearse(ctx context.Context, tables []verify.Table) error {
	if len(tables) == 0 {
		return nil
	}
	request := c.proof
	request.Tables = tables
	limit := max(2*c.MaxFreeze, patience)
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := verify.Run(bounded, request)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return fmt.Errorf("comparing both sides took more than %s, or waits for a lock, and max_freeze is %s, so a freeze would be in vain; hint: raise [cutover] max_freeze, or set verify = false there and run `pgreshard verify` while writers are stopped", limit, c.MaxFreeze)
	}
	return err
}

// patience with a comparison beside the writers, which is slower than one without them; where twice max_freeze is more,
// it is that.
const patience = 10 * time.Second

// verdict is what a comparison that runs will say.
type verdict struct {
	stop context.CancelFunc
	said chan error
}

func begin(ctx context.Context, compare func(context.Context) error) *verdict {
	ctx, stop := context.WithCancel(ctx)
	v := &verdict{stop, make(chan error, 1)}
	go func() { v.said <- compare(ctx) }()
	return v
}

// await waits until it has said it.
func (v *verdict) await() error {
	if v == nil {
		return nil
	}
	defer v.stop()
	return <-v.said
}

// verifyDrained is the verdict of the comparison that began when everything was drained.
func (c *cutover) verifyDrained(ctx context.Context) error {
	v := c.verdict
	c.verdict = nil
	return v.await()
}

// compareDrained compares what has changed since everything was compared, now that nobody writes.
func (c *cutover) compareDrained(ctx context.Context) error {
	if !c.MustVerify {
		return nil
	}
	witnessed := make(chan struct{})
	go func() {
		defer close(witnessed)
		c.witness(ctx)
	}()
	defer func() { <-witnessed }()
	at := make([]string, len(c.frozen))
	for i, z := range c.frozen {
		at[i] = z.Barrier.String()
	}
	since := c.proven.since
	if err := c.writersEnded(ctx); err != nil {
		return err
	}
	if since.lostBy() == nil {
		if err := errors.Join(since.reach(ctx), since.lookAgain(ctx)); err != nil {
			since.lose(err)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	request := c.proof
	var whole []string
	request.Tables, whole = c.proven.left(since.now())
	keys := 0
	for _, t := range request.Tables {
		if t.Only != nil {
			keys += t.Only.Keys.Len()
		}
	}
	c.log.Info("compared in the freeze", "keys", keys, "whole", strings.Join(whole, "; "))
	was := c.comparingNow()
	report, err := verify.Run(ctx, request)
	if err != nil {
		c.setVerified(was)
		return err
	}
	report.At = at
	return errors.Join(c.conclude(ctx, report, request.Tables, whole...), differenceOf(report))
}

// Who has written to a table has this lock on it until his transaction ends, and a transaction ID; a prepared one has no session. Who
// has emptied it is waited for by whoever reads it. Our own write what the move writes.
const selectWriting = `
select case when l.pid is null then 'a prepared transaction' else 'pid ' || l.pid end || ' has written to ' || min(l.relation::regclass::text)
  from pg_locks l left join pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'relation' and l.database = (select oid from pg_database where datname = current_database()) and l.granted
   and l.mode = 'RowExclusiveLock' and coalesce(a.application_name, '') not like 'pgreshard %'
   and exists (select from pg_locks x where x.locktype = 'transactionid' and x.mode = 'ExclusiveLock' and x.granted and x.virtualtransaction = l.virtualtransaction)
   and l.relation in (select to_regclass(t) from unnest($1::text[]) t union select relid from unnest($1::text[]) t, pg_partition_tree(to_regclass(t)))
 group by l.pid, l.virtualtransaction order by 1`

// writersEnded waits until nobody but the move has a transaction open that has written to its tables on a shard, where the fence does
// not hold who passes by every trigger: what it commits later would be in no comparison. It waits as long as a freeze waits for one on
// a source.
func (c *cutover) writersEnded(ctx context.Context) error {
	var tables []string
	for _, t := range c.proof.Tables {
		tables = append(tables, t.Dest.Name.SQL())
	}
	end := time.Now().Add(c.LockTimeout)
	return atOnce(ctx, len(c.Destination.Shards), func(ctx context.Context, n int) error {
		for {
			var writing []string
			err := c.kept(ctx, sessionKey{&c.Destination, n, pg.Reader}, func(conn *pgx.Conn) error {
				rows, err := conn.Query(ctx, selectWriting, tables)
				if err == nil {
					writing, err = pgx.CollectRows(rows, pgx.RowTo[string])
				}
				return err
			})
			if err != nil || len(writing) == 0 {
				return err
			}
			if time.Now().After(end) {
				return fmt.Errorf("%s: %w: %s; hint: something writes to the shards besides the move: end it, and see what it was", node{number: n}, errWritersInFlight, strings.Join(writing, "; "))
			}
			if err := sleep(ctx, 5*time.Millisecond); err != nil {
				return err
			}
		}
	})
}
