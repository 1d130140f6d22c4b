package move

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

func (c *cutover) tellArm(ctx context.Context) ([]string, error) {
	return c.eachSource(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) (string, error) {
		lack, err := c.fence(conn).unfenced(ctx, c.inv.names(), true)
		if err != nil || len(lack) == 0 {
			return fmt.Sprintf("every table of %s has its fence", listed(c.inv.names())), err
		}
		return "put the fence on " + listed(lack), nil
	})
}

func (c *cutover) tellCheck(ctx context.Context) ([]string, error) {
	lines, err := c.eachSource(ctx, func(ctx context.Context, n int, conn *pgx.Conn) (string, error) {
		all, err := blockers(ctx, conn, 0)
		if err != nil {
			return "", err
		}
		bytes, age, ok := c.followers[n].lag()
		behind := "how far its stream is behind is not known yet"
		if ok {
			behind = fmt.Sprintf("its stream is %s (%.1f s) behind, %s is the most", sizeText(bytes), age.Seconds(), sizeText(c.MaxLag))
		}
		open := "no transaction that has written is open"
		if len(all) > 0 {
			var list []string
			for _, b := range all {
				list = append(list, b.String())
			}
			open = "open transactions that have written: " + strings.Join(list, "; ") + "; one older than a second is in the way"
			if c.OnBlockers == BlockersTerminate {
				open = "open transactions that have written: " + strings.Join(list, "; ") + "; one that is in the way of the freeze is ended"
			}
		}
		return behind + "; " + open, nil
	})
	if err == nil && c.MustVerify {
		lines = append(lines, fmt.Sprintf("compare both sides while writers go on, then what has changed meanwhile until that is little; what the freeze must compare whole, in %s at most", max(2*c.MaxFreeze, patience)))
	}
	return lines, err
}

const countSessions = `select count(*), count(*) filter (where state <> 'idle') from pg_stat_activity
	where datname = current_database() and backend_type = 'client backend' and not starts_with(application_name, 'pgreshard ')`

func (c *cutover) tellFreeze(ctx context.Context) ([]string, error) {
	return c.eachSource(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) (string, error) {
		var sessions, busy int
		err := conn.QueryRow(ctx, countSessions).Scan(&sessions, &busy)
		return fmt.Sprintf("wait %s at most for writers in flight, then refuse writes to %d tables until %s from then, by its own clock; %d sessions of applications are open, %d at work",
			c.LockTimeout, len(c.inv.tables), c.MaxFreeze, sessions, busy), err
	})
}

func (c *cutover) tellDrain(ctx context.Context) ([]string, error) {
	return c.eachSource(ctx, func(ctx context.Context, n int, conn *pgx.Conn) (string, error) {
		var end pg.LSN
		err := conn.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text`).Scan(&end)
		return fmt.Sprintf("wait until every shard has passed its barrier; its log is at %s now, the shards are at %s", end, c.followers[n].sink.Applied()), err
	})
}

func (c *cutover) tellFinish(ctx context.Context) (lines []string, err error) {
	var keys []ForeignKey
	err = c.source(ctx, 0, func(conn *pgx.Conn) (err error) {
		keys, err = ForeignKeys(ctx, conn, c.inv.tree(0), c.SkipConstraint)
		return err
	})
	if err != nil {
		return nil, err
	}
	triggers, err := c.sourceTriggers(ctx, c.inv)
	if err != nil {
		return nil, err
	}
	sequences := 0
	if c.Sequences != string(SequencesNone) {
		var mu sync.Mutex
		err = c.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
			all, err := ReadSequences(ctx, conn, c.inv.tree(0), true)
			mu.Lock()
			defer mu.Unlock()
			sequences = max(sequences, len(all))
			return err
		})
	}
	triggers = slices.DeleteFunc(triggers, func(t Trigger) bool { return t.State != 'O' })
	return c.eachShard(func(int) string {
		return fmt.Sprintf("set %d sequences (policy %s), make %d foreign keys NOT VALID, enable %d triggers", sequences, c.Sequences, len(keys), len(triggers))
	}), err
}

func (c *cutover) tellVerify(ctx context.Context) ([]string, error) {
	if !c.MustVerify {
		return []string{"nothing is compared ([cutover] verify = false)"}, nil
	}
	request, err := c.verification(ctx, c.inv)
	if err != nil {
		return nil, err
	}
	lines := []string{fmt.Sprintf("compare %s on %d sources and %d shards, of each what changes after the comparison beside writers", listed(c.inv.names()), len(c.Source.Shards), len(c.Destination.Shards))}
	since := newChanges(c.Move, c.inv, request.Tables)
	for _, name := range slices.SortedFunc(maps.Keys(since.never), func(a, b pg.Name) int { return strings.Compare(a.String(), b.String()) }) {
		lines = append(lines, fmt.Sprintf("compare all of %s: %s", name, since.never[name]))
	}
	return lines, nil
}

func (c *cutover) tellSeal(ctx context.Context) ([]string, error) {
	return c.eachSource(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) (string, error) {
		state, err := readFence(ctx, conn)
		says := "lets writes pass"
		if state.Refuses() {
			says = "refuses writes"
		}
		return "refuse writes for good, if the freeze has held; its fence " + says + " now", err
	})
}

func (c *cutover) tellSwitch(ctx context.Context) ([]string, error) {
	serving, err := c.readServing(ctx)
	return []string{fmt.Sprintf("%s: layout %d serves instead of layout %d (now: %d); before this everything is undone, after it nothing",
		c.nodeWords(node{}), c.Destination.Layout, c.Source.Layout, serving)}, err
}

func (c *cutover) tellOpen(context.Context) ([]string, error) {
	return c.eachShard(func(int) string { return fmt.Sprintf("let writes of layout %d pass", c.Destination.Layout) }), nil
}

// listed names up to five tables.
func listed(names []pg.Name) string {
	const most = 5
	var list []string
	for _, n := range names[:min(most, len(names))] {
		list = append(list, n.String())
	}
	text := strings.Join(list, ", ")
	if len(names) > most {
		text += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return text
}
