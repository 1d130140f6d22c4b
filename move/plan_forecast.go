package move

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/forecast"
	"pgreshard/pg"
)

const (
	trialTime    = 8 * time.Second  // after which a trial begins no further part
	forecastTime = 30 * time.Second // for all of it
	watchAtLeast = time.Second      // how long the sources are watched for their rates
	trialShare   = 20               // one byte of so many is copied in trial,
	leastTrial   = 16 << 20         // but at least so many,
	mostTrial    = 256 << 20        // and at most
)

// busy is how much a source has written until a moment, and who writes then.
type busy struct {
	at      time.Time
	log     pg.LSN
	changes int64
	writers int
	oldest  time.Duration
}

const selectBusy = `select pg_current_wal_insert_lsn()::text,
	(select tup_inserted + tup_updated + tup_deleted from pg_stat_database where datname = current_database()),
	(select count(*) from pg_stat_activity where ` + writing + `),
	(select coalesce(1e6 * max(extract(epoch from clock_timestamp() - xact_start)), 0)::bigint from pg_stat_activity where ` + writing + `)`

const writing = `datname = current_database() and backend_xid is not null`

// watch looks at every source once.
func (p *planner) watch(ctx context.Context) ([]busy, error) {
	all := make([]busy, len(p.Source.Shards))
	err := atOnce(ctx, len(all), func(ctx context.Context, n int) error {
		return p.on(ctx, p.Source.Shards[n], pg.Reader, func(conn *pgx.Conn) error {
			b := &all[n]
			b.at = time.Now()
			var oldest int64
			err := conn.QueryRow(ctx, selectBusy).Scan(&b.log, &b.changes, &b.writers, &oldest)
			b.oldest = time.Duration(oldest) * time.Microsecond
			return err
		})
	})
	return all, err
}

// forecast tells what the move will take. before is what the sources had written when the plan began.
func (p *planner) forecast(ctx context.Context, inv *inventory, before []busy) (*forecast.Forecast, error) {
	ctx, cancel := context.WithTimeout(ctx, forecastTime)
	defer cancel()
	in := forecast.Input{Shards: len(p.Destination.Shards), LockWait: p.LockTimeout}
	if err := sleep(ctx, max(0, watchAtLeast-time.Since(before[0].at))); err != nil {
		return nil, err
	}
	after, err := p.watch(ctx) // before the trial, which a source may have to log itself
	if err != nil {
		return nil, err
	}
	for n := range after {
		for _, b := range []busy{before[n], after[n]} {
			in.Writers, in.Longest = in.Writers+b.writers, max(in.Longest, b.oldest)
		}
		seconds := after[n].at.Sub(before[n].at).Seconds()
		s := forecast.Source{LogPerSecond: float64(after[n].log-before[n].log) / seconds, ChangesPerSecond: float64(after[n].changes-before[n].changes) / seconds}
		if s.Room, s.RoomIs, err = p.room(ctx, n); err != nil {
			return nil, err
		}
		in.Sources = append(in.Sources, s)
	}
	trial := forecast.Trial{Sources: p.Source.Shards, Shards: p.Destination.Shards, Open: p.connect, Workers: p.CopyWorkers, Time: trialTime}
	indexes, err := p.indexes(ctx)
	if err != nil {
		return nil, err
	}
	var bytes int64
	for _, t := range inv.tables {
		bytes += inv.planned(t).Bytes
		table := forecast.Table{Root: inv.sources[0].Table(t.name), Indexes: indexes[inv.sources[0].Table(t.name).OID]}
		for n, catalog := range inv.sources {
			leaves := catalog.Leaves(catalog.Table(t.name))
			if t.rule.Omni && n > 0 { // read on the first alone
				leaves = nil
			}
			table.Leaves = append(table.Leaves, leaves)
		}
		trial.Tables = append(trial.Tables, table)
	}
	trial.Bytes = min(max(bytes/trialShare, leastTrial), mostTrial)
	measured, err := trial.Run(ctx)
	if err != nil {
		return nil, err
	}
	in.Measured = *measured
	for i, t := range inv.tables {
		planned, read, copies := inv.planned(t), measured.PerTable[i], int64(1)
		if t.rule.Omni {
			copies = int64(in.Shards)
		}
		rows := planned.Rows
		if rows < 0 && read.Bytes > 0 { // the server has no estimate
			rows = read.Rows * planned.Bytes / read.Bytes
		}
		in.Bytes += planned.Bytes * copies
		in.Rows += max(0, rows) * copies
		in.IndexRows += max(0, rows) * copies * int64(len(trial.Tables[i].Indexes))
	}
	return forecast.Make(in), nil
}

// room is how much log a slot may keep on a source, and what sets that.
func (p *planner) room(ctx context.Context, source int) (bytes int64, is string, err error) {
	err = p.on(ctx, p.Source.Shards[source], pg.Reader, func(conn *pgx.Conn) error {
		var limit *int64
		if err := conn.QueryRow(ctx, "select "+slotLimit).Scan(&limit); err != nil {
			return err
		}
		disk := seenDisk(ctx, conn)
		bytes = (&slotHealth{limit: limit, budget: p.budgetFor(limit, disk)}).bound()
		switch {
		case p.WALBudget > 0:
			is = "[stream] wal_budget says how much it may keep"
		case limit != nil:
			is = "it may keep half of max_slot_wal_keep_size"
		case disk > 0:
			is = "it may keep half of the free disk"
		default:
			is = "its disk cannot be seen: wal_budget is its default"
		}
		return nil
	})
	return bytes, is, err
}

// Of every table, the indexes that are not its identity's. Expressions have no column of their own.
const selectIndexes = `select i.indrelid, m.amname, array(select a.attname from unnest(i.indkey::int2[]) with ordinality k (num, n)
		join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.num where k.n <= i.indnkeyatts order by k.n)
	from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am m on m.oid = c.relam
	where i.indislive and not i.indisprimary and not i.indisreplident and i.indrelid >= 16384`

// indexes are those that are built after the copy, by the OID of their table on the first source.
func (p *planner) indexes(ctx context.Context) (map[uint32][]forecast.Index, error) {
	all := map[uint32][]forecast.Index{}
	err := p.on(ctx, p.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, selectIndexes)
		if err != nil {
			return err
		}
		var table uint32
		var index forecast.Index
		_, err = pgx.ForEachRow(rows, []any{&table, &index.Method, &index.Columns}, func() error {
			if len(index.Columns) > 0 {
				all[table] = append(all[table], index)
			}
			return nil
		})
		return err
	})
	return all, err
}

// foretell adds the forecast to a plan of a move that is not made yet. What keeps it from being made is a note.
func (p *planner) foretell(ctx context.Context, inv *inventory, before []busy) error {
	f, err := p.forecast(ctx, inv, before)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		p.note("how long it will take is not foretold: %s", whyNot(err))
		return nil
	}
	p.plan.Forecast = f
	return nil
}
