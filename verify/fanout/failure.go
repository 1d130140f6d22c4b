package fanout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/pg"
)

// Failure is a node that did not answer, or was not taken.
type Failure struct {
	Shard  int    `json:"shard"`
	Node   string `json:"node,omitempty"` // host:port; empty where none was chosen
	Reason string `json:"reason"`         // one of those of Reason, or ReasonBehind
	Code   string `json:"sqlstate,omitempty"`
}

func (f Failure) String() string {
	text := fmt.Sprintf("shard %d", f.Shard)
	if f.Node != "" {
		text += " at " + f.Node
	}
	text += ": " + f.Reason
	if f.Code != "" {
		text += " (SQLSTATE " + f.Code + ")"
	}
	return text
}

// ReasonBehind is why a replica is not taken that is, or may be, further behind than was asked for.
const ReasonBehind = "behind"

// behindError is a replica's.
type behindError struct{ most time.Duration }

func (e *behindError) Error() string {
	return fmt.Sprintf("it is not known to be less than %s behind", e.most)
}

// errNoStandby means that a node that is asked as a replica follows no one.
var errNoStandby = errors.New("it is no standby any more")

func failureOf(shard int, node string, err error) Failure {
	f := Failure{Shard: shard, Node: node, Reason: Reason(err), Code: pg.Code(err)}
	var behind *behindError
	if errors.As(err, &behind) {
		f.Reason = ReasonBehind
	}
	return f
}

// Reason puts an error of a node under one of four words: timeout, unavailable, no_leader, error.
func Reason(err error) string {
	var connect *pgconn.ConnectError
	var leaders *pg.LeadersError
	var none *pg.NoLeaderError
	switch {
	case errors.As(err, &leaders), errors.As(err, &none), errors.Is(err, errStandby):
		return "no_leader"
	case errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err):
		return "timeout"
	case errors.As(err, &connect) && (strings.Contains(err.Error(), "read only connection") || strings.Contains(err.Error(), "hot standby mode")):
		return "no_leader"
	case pg.Transient(err):
		return "unavailable"
	}
	return "error"
}
