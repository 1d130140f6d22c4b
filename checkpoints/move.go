package checkpoints

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// Move is a move as its home, the destination's first shard, remembers it.
type Move struct {
	Name      string
	State     string
	Error     string          // what stopped it, empty while nothing has
	Spec      json.RawMessage // shards, tables and rules as they were when it was made
	Detail    json.RawMessage // what a later start must know: outcomes of phases
	ChangedAt time.Time
}

// FindMove reads a move from its home; nil where there is none of that name.
func FindMove(ctx context.Context, q pg.Querier, name string) (*Move, error) {
	var there bool
	if err := q.QueryRow(ctx, `select to_regclass('pgreshard.move') is not null`).Scan(&there); err != nil || !there {
		return nil, err
	}
	m := &Move{Name: name}
	err := q.QueryRow(ctx, `select state, coalesce(error, ''), spec, detail, changed_at from pgreshard.move where name = $1`, name).
		Scan(&m.State, &m.Error, &m.Spec, &m.Detail, &m.ChangedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read move %s: %w", name, err)
	}
	return m, nil
}

// Book writes a move's bookkeeping on its home under one epoch; every write fails once another worker has raised it.
type Book struct {
	Move  string
	Epoch int64
}

// Start records a new move before anything is made for it.
func (b Book) Start(ctx context.Context, conn *pgx.Conn, state string, spec json.RawMessage) error {
	return b.write(ctx, conn, statement{`insert into pgreshard.move (name, state, spec) values ($1, $2, $3) on conflict (name) do nothing`, []any{b.Move, state, spec}})
}

// SetState moves the move on and forgets the error that had stopped it.
func (b Book) SetState(ctx context.Context, conn *pgx.Conn, state string) error {
	return b.write(ctx, conn,
		statement{`update pgreshard.move set state = $2, error = null, changed_at = now() where name = $1`, []any{b.Move, state}},
		statement{`insert into pgreshard.journal (move, step, phase) values ($1, $2, 'state')`, []any{b.Move, state}})
}

// SetError records what stopped the move; the state stays.
func (b Book) SetError(ctx context.Context, conn *pgx.Conn, text string) error {
	return b.write(ctx, conn, statement{`update pgreshard.move set error = $2 where name = $1`, []any{b.Move, text}})
}

// SetDetail remembers one thing, as JSON, for a later start.
func (b Book) SetDetail(ctx context.Context, conn *pgx.Conn, key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return b.write(ctx, conn, statement{`update pgreshard.move set detail = detail || jsonb_build_object($2::text, $3::jsonb) where name = $1`, []any{b.Move, key, text}})
}

// Journal writes that a step begins ("before") or is done ("after"), with a note that is JSON, and before it the steps and
// phases of entries that are owed.
func (b Book) Journal(ctx context.Context, conn *pgx.Conn, step, phase string, note any, owed ...Entry) error {
	text, err := json.Marshal(note)
	if err != nil {
		return err
	}
	var list []statement
	for _, e := range append(owed, Entry{Step: step, Phase: phase, Note: text}) {
		if e.Note == nil {
			e.Note = json.RawMessage(`{}`)
		}
		list = append(list, statement{`insert into pgreshard.journal (move, step, phase, note) values ($1, $2, $3, $4)`, []any{b.Move, e.Step, e.Phase, e.Note}})
	}
	return b.write(ctx, conn, list...)
}

type statement struct {
	sql  string
	args []any
}

const checkEpoch = `select pgreshard.check_epoch($1)`

// write runs statements as one transaction of this epoch, in one round trip: a server that has got it commits it, though its
// worker may be dead.
func (b Book) write(ctx context.Context, conn *pgx.Conn, list ...statement) error {
	batch := &pgx.Batch{}
	batch.Queue(checkEpoch, b.Epoch)
	for _, s := range list {
		batch.Queue(s.sql, s.args...)
	}
	return b.failed(conn.SendBatch(ctx, batch).Close())
}

func (b Book) failed(err error) error {
	if err != nil {
		return fmt.Errorf("write the bookkeeping of move %s: %w", b.Move, Refused(err))
	}
	return nil
}

// LastNote reads into what a node's journal noted last of a step of a move; it stays as it is where there is none.
func LastNote(ctx context.Context, q pg.Querier, move, step string, into any) error {
	var note json.RawMessage
	err := q.QueryRow(ctx, `select note from pgreshard.journal where move = $1 and step = $2 order by id desc limit 1`, move, step).Scan(&note)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the journal of move %s: %w", move, err)
	}
	return json.Unmarshal(note, into)
}

// Entry is a line of the journal.
type Entry struct {
	At    time.Time
	Step  string
	Phase string
	Note  json.RawMessage
}

// ReadJournal lists the last entries of a move, oldest first.
func ReadJournal(ctx context.Context, q pg.Querier, move string, limit int) ([]Entry, error) {
	rows, err := q.Query(ctx, `select at, step, phase, note from (
		select * from pgreshard.journal where move = $1 order by id desc limit $2) j order by id`, move, limit)
	if err != nil {
		return nil, fmt.Errorf("read the journal of move %s: %w", move, err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Entry])
}

// LastEntry is the last line of a move's journal that is of one of these steps, nil where there is none.
func LastEntry(ctx context.Context, q pg.Querier, move string, steps []string) (*Entry, error) {
	var e Entry
	err := q.QueryRow(ctx, `select at, step, phase, note from pgreshard.journal where move = $1 and step = any($2) order by id desc limit 1`, move, steps).
		Scan(&e.At, &e.Step, &e.Phase, &e.Note)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the journal of move %s: %w", move, err)
	}
	return &e, nil
}
