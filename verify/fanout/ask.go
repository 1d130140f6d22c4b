package fanout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/pg"
)

// Request is one question to several shards.
type Request struct {
	Query       Query
	Shards      []Shard
	Consistency Consistency
	Behind      time.Duration // Bounded: how far behind a replica may be
	Timeout     time.Duration // for what one node is asked; 0: as long as it takes
	Parallel    int           // shards asked at the same time; default 32
}

const defaultParallel = 32

// ErrTooManyGroups means that a question groups by what has too many values to be looked at.
var ErrTooManyGroups = fmt.Errorf("it makes more than %d groups; hint: group by columns with fewer values, or narrow it with where", mostGroups)

// Answer is what the shards said together.
type Answer struct {
	Rows []Row `json:"-"` // by group, in its order; nil where no shard answered
	// Asked are the nodes whose parts it is made of, Failures the shards without a part and why, each node that was tried.
	Asked    []Asked   `json:"asked"`
	Failures []Failure `json:"failures,omitempty"`

	open func(context.Context) (*pgx.Conn, error) // a session with the server that merged it
}

// Partial says that a shard's part is not in it.
func (a *Answer) Partial() bool { return len(a.Failures) > 0 }

// Row is one group. nil is NULL.
type Row struct {
	Group  []*string // of Query.GroupBy
	Values []*string // of Query.Aggregates
}

// Asked is a node that answered for its shard.
type Asked struct {
	Shard int    `json:"shard"`
	Node  string `json:"node"`
	Leads bool   `json:"leads"`
}

// part is what one shard said. Its session is open where conn is not nil.
type part struct {
	shard    *Shard
	node     Node
	conn     *pgx.Conn
	rows     [][]*string
	failures []Failure
	err      error // ErrTooManyGroups
}

// Ask asks every shard at once and merges what they say. A shard that does not answer is in the answer, and no error.
func Ask(ctx context.Context, r Request) (*Answer, error) {
	if len(r.Shards) == 0 {
		return nil, errors.New("there is no shard to ask")
	}
	parts := make([]part, len(r.Shards))
	var group errgroup.Group
	group.SetLimit(cmp.Or(r.Parallel, defaultParallel))
	for i := range r.Shards {
		group.Go(func() error {
			parts[i] = r.ask(ctx, &r.Shards[i])
			return nil
		})
	}
	_ = group.Wait()
	defer func() {
		for _, p := range parts {
			pg.Close(p.conn)
		}
	}()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return r.merge(ctx, parts)
}

// ask gets a shard's part from the first of its nodes that gives it.
func (r *Request) ask(ctx context.Context, s *Shard) part {
	p := part{shard: s}
	nodes, err := s.Nodes(ctx)
	if err != nil {
		p.failures = append(p.failures, failureOf(s.Number, "", err))
		return p
	}
	nodes = r.Consistency.inOrder(nodes)
	if len(nodes) == 0 {
		p.failures = append(p.failures, Failure{Shard: s.Number, Reason: "no_leader"})
	}
	for _, n := range nodes {
		p.node = n
		err := p.read(ctx, r)
		if err == nil || errors.Is(err, ErrTooManyGroups) {
			p.failures, p.err = nil, err
			break
		}
		p.failures = append(p.failures, failureOf(s.Number, p.node.Name, err))
		if ctx.Err() != nil {
			break
		}
	}
	return p
}

// read reads a part from its node, and leaves the session open where that goes well.
func (p *part) read(ctx context.Context, r *Request) error {
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Timeout)
		defer cancel()
	}
	conn, err := r.open(ctx, p.shard, &p.node)
	if err != nil {
		return err
	}
	sql, args := r.Query.shard()
	if p.rows, err = rows(ctx, conn.PgConn(), sql, args); err == nil && len(p.rows) > mostGroups {
		err = ErrTooManyGroups
	}
	if err != nil {
		pg.Close(conn)
		return err
	}
	p.conn = conn
	return nil
}
