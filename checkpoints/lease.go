package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// LeaseTime is how long a worker counts as running after its last beat, by the home server's clock.
const LeaseTime = 5 * time.Second

// Lease says which worker runs a move.
type Lease struct {
	Epoch   int64
	Host    string
	PID     int
	Address string        // where it listens
	Age     time.Duration // of its last beat, by the home server's clock
}

// Live says that the holder has beaten within LeaseTime.
func (l *Lease) Live() bool { return l != nil && l.Age < LeaseTime }

// ReadLease reads who holds a move; nil where nobody does.
func ReadLease(ctx context.Context, q pg.Querier, move string) (*Lease, error) {
	var l Lease
	var age float64
	err := q.QueryRow(ctx, `select epoch, host, pid, address, extract(epoch from clock_timestamp() - beat)::float8
		from pgreshard.lease where move = $1`, move).Scan(&l.Epoch, &l.Host, &l.PID, &l.Address, &age)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the lease of move %s: %w", move, err)
	}
	l.Age = time.Duration(age * float64(time.Second))
	return &l, nil
}

// TakeLease makes this worker the holder under a new epoch, unless another holds it: then it returns that one. me.Epoch is
// raised above that of a holder who took the lease and was stopped before any node knew of it. free says of a holder whether it is known to be gone although its last beat is recent (its process on this very machine has ended).
func TakeLease(ctx context.Context, conn *pgx.Conn, move string, me *Lease, free func(Lease) bool) (holder *Lease, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtextextended('pgreshard.lease.' || $1, 0))`, move); err != nil {
			return err
		}
		held, err := ReadLease(ctx, tx, move)
		if err != nil {
			return err
		}
		if held.Live() && !free(*held) {
			holder = held
			return nil
		}
		if held != nil {
			me.Epoch = max(me.Epoch, held.Epoch+1)
		}
		_, err = tx.Exec(ctx, `insert into pgreshard.lease (move, epoch, host, pid, address, beat) values ($1, $2, $3, $4, $5, clock_timestamp())
			on conflict (move) do update set epoch = excluded.epoch, host = excluded.host, pid = excluded.pid, address = excluded.address, beat = excluded.beat`,
			move, me.Epoch, me.Host, me.PID, me.Address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("take the lease of move %s: %w", move, err)
	}
	return holder, nil
}

// Beat says that the worker of this epoch still runs; ErrSuperseded where another has taken over.
func Beat(ctx context.Context, conn *pgx.Conn, move string, epoch int64) error {
	tag, err := conn.Exec(ctx, `update pgreshard.lease set beat = clock_timestamp() where move = $1 and epoch = $2`, move, epoch)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrSuperseded
	}
	return err
}

// DropLease gives the lease back.
func DropLease(ctx context.Context, conn *pgx.Conn, move string, epoch int64) error {
	_, err := conn.Exec(ctx, `delete from pgreshard.lease where move = $1 and epoch = $2`, move, epoch)
	return err
}
