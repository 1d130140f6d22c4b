package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/pg"
)

// errWritersInFlight means that transactions which had written held the lock for longer than lock_timeout. Nothing was
// changed and no lock is left; try again, and look at blockers for who it was.
var errWritersInFlight = errors.New("transactions that write did not end within lock_timeout")

// errFlag means that a node's flag is not what this step expects: a freeze ran out, or somebody else changed it.
// Nothing was changed.
var errFlag = errors.New("the fence is not in the state this step needs")

// errUnfenced means that a table in scope has no enabled fence, such as a partition made since arm. Nothing was
// changed; arm, then try again.
var errUnfenced = errors.New("a table has no fence")

// fence changes the fence of one node, whose bookkeeping schema must be installed. Conn is an Admin session in no
// transaction and used by nobody else meanwhile.
type fence struct {
	Conn        *pgx.Conn
	Epoch       int64         // this worker's; every change of a flag raises in the server where it is not the node's
	LockTimeout time.Duration // bounds each wait for a lock
	Stuck       func(pg.Name) // nil, or told of each table whose lock was not had when arming or disarming it
}

const fenceInstallLock = `select pg_advisory_xact_lock(hashtextextended('pgreshard.install', 0))`

// setUp makes the fence's functions and flags. closed: the node's layout does not serve yet, writes are refused until
// open. A node that has the fence of this layout keeps its flags, whatever they say; a retired node that joins a later
// layout is given its flags anew, closed.
func (f fence) setUp(ctx context.Context, layout, serving int64, closed bool) error {
	err := pgx.BeginFunc(ctx, f.Conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fenceInstallLock); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, fenceDDL); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `select pgreshard.fence_arrange($1, $2, $3, $4, $5)`, f.Epoch, f.wait(), layout, serving, closed)
		return err
	})
	return f.refused("set up the fence", err)
}

func (f fence) wait() int64 { return max(1, f.LockTimeout.Milliseconds()) }

// frozen is what a freeze wrote.
type frozen struct {
	Value int64 // the flag, which seal and lift name
	// Barrier is the end of the barrier message. Every write that the fence let through committed below it, and the
	// message's own transaction commits above it, so a shard whose checkpoint has reached it holds them all.
	Barrier pg.LSN
}

// Until is when the freeze ends by itself, by the node's clock.
func (z frozen) Until() time.Time { return time.UnixMicro(z.Value) }

// freeze refuses writes on a source from now on for at most d by the node's own clock, and writes the barrier message
// in the same transaction. It waits for writers in flight, bounded by LockTimeout (errWritersInFlight); new ones are
// refused from the first moment of that wait.
//
// Where the answer is lost the freeze may stand all the same: lift(ctx, liftAny) on a new connection.
func (f fence) freeze(ctx context.Context, moved []pg.Name, d time.Duration, prefix, content string) (frozen, error) {
	var z frozen
	err := f.Conn.QueryRow(ctx, `select until, barrier::text from pgreshard.fence_freeze($1, $2, $3, $4, $5, $6)`,
		f.Epoch, f.wait(), quoted(moved), d.Microseconds(), prefix, content).Scan(&z.Value, &z.Barrier)
	return z, f.refused("freeze", err)
}

// seal makes a freeze permanent, but only if the flag still holds the very value freeze wrote: then no write has been
// let through since. Sealing twice is the same as once. It returns the log position from which the seal is in the log.
func (f fence) seal(ctx context.Context, moved []pg.Name, value int64) (pg.LSN, error) {
	var lsn pg.LSN
	err := f.Conn.QueryRow(ctx, `select pgreshard.fence_seal($1, $2, $3, $4)::text`, f.Epoch, f.wait(), quoted(moved), value).Scan(&lsn)
	return lsn, f.refused("seal", err)
}

// liftAny lifts whatever stands, a seal too: for an undo that cannot know how far a freeze or seal came. Only before
// the switch.
const liftAny = int64(-1)

// lift lets writes pass again. value is what freeze returned, fenceSealed for a seal, or liftAny; a freeze that ran out
// meanwhile is no error.
func (f fence) lift(ctx context.Context, value int64) error {
	_, err := f.Conn.Exec(ctx, `select pgreshard.fence_lift($1, $2, $3)`, f.Epoch, f.wait(), value)
	return f.refused("lift the freeze", err)
}

// open lets writes pass on a destination, whose layout serves from now on.
func (f fence) open(ctx context.Context, version int64) error {
	_, err := f.Conn.Exec(ctx, `select pgreshard.fence_open($1, $2, $3)`, f.Epoch, f.wait(), version)
	return f.refused("open", err)
}

// retire tells a sealed source which layout serves now, so that its refusals name it.
func (f fence) retire(ctx context.Context, version int64) error {
	_, err := f.Conn.Exec(ctx, `select pgreshard.fence_retire($1, $2, $3)`, f.Epoch, f.wait(), version)
	return f.refused("retire", err)
}

// refused turns what the server raises into the errors callers branch on.
func (f fence) refused(what string, err error) error {
	switch pg.Code(err) {
	case "":
		if err == nil {
			return nil
		}
	case "55P03", "40P01":
		return fmt.Errorf("%s: %w: %w", what, errWritersInFlight, err)
	case codeFenceFlag:
		return fmt.Errorf("%s: %w: %w", what, errFlag, err)
	case codeUnfenced:
		return fmt.Errorf("%s: %w: %w", what, errUnfenced, err)
	case checkpoints.CodeEpoch:
		return fmt.Errorf("%s: %w", what, checkpoints.Refused(err))
	}
	return fmt.Errorf("%s: %w", what, err)
}

// quoted is the form regclass reads.
func quoted(tables []pg.Name) []string {
	out := make([]string, len(tables))
	for i, t := range tables {
		out[i] = t.SQL()
	}
	return out
}

// fenceState is what a node's fence says.
type fenceState struct {
	Installed bool
	Layout    int64 // the node's own
	Serving   int64 // as far as this node knows
	Until     int64 // 0, microseconds since 1970, or fenceSealed
	Now       int64 // the node's clock, microseconds since 1970
}

// Refuses says whether a write would be refused now.
func (s fenceState) Refuses() bool { return s.Until > s.Now }

// Sealed says that only open or lift can make it serve again.
func (s fenceState) Sealed() bool { return s.Until == fenceSealed }

// readFence reads a node's flags.
func readFence(ctx context.Context, q pg.Querier) (fenceState, error) {
	var s fenceState
	if err := q.QueryRow(ctx, `select to_regclass('pgreshard.fence_until') is not null`).Scan(&s.Installed); err != nil || !s.Installed {
		return s, err
	}
	err := q.QueryRow(ctx, `select l.last_value, s.last_value, u.last_value, pgreshard.fence_now()
		from pgreshard.fence_layout l, pgreshard.fence_serving s, pgreshard.fence_until u`).Scan(&s.Layout, &s.Serving, &s.Until, &s.Now)
	return s, err
}
