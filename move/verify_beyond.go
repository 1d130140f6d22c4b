package move

import (
	"context"
	"slices"

	"pgreshard/verify"
	"pgreshard/verify/fanout"
)

// beyondRows adds to a comparison of rows what is asked besides: whether values that the sources kept unique are so across the
// shards, and [[checks]]. Both are of the moment the rows were compared at, nil where that was no single one.
func (m *Move) beyondRows(ctx context.Context, inv *inventory, request verify.Request, mo *moment, report *verify.Report) error {
	if err := m.addUniques(ctx, inv, request, mo, report); err != nil {
		return err
	}
	if len(m.Checks) == 0 {
		return nil
	}
	found, err := m.runChecks(ctx, inv, CheckOptions{Consistency: fanout.Strong}, mo)
	if err != nil {
		return err
	}
	for _, c := range found.Checks {
		i := slices.IndexFunc(report.Tables, func(t verify.TableReport) bool { return t.Table == c.Table })
		if err := report.Tables[i].AddCheck(c); err != nil {
			return err
		}
		if c.Differences() > 0 && mo != nil {
			if err := verify.AsItWas(ctx, mo.under(request), i); err != nil {
				return err
			}
		}
	}
	return nil
}

// addUniques looks at the constraints that held on the sources and that no shard can hold alone. A primary key is compared with
// the rows; what two sources may have twice already was no constraint before.
func (m *Move) addUniques(ctx context.Context, inv *inventory, request verify.Request, mo *moment, report *verify.Report) error {
	if len(m.Destination.Shards) == 1 {
		return nil
	}
	all, err := m.uniques(ctx, inv)
	if err != nil {
		return err
	}
	dest, err := m.destCatalog(ctx)
	if err != nil {
		return err
	}
	request = mo.under(request)
	for i, t := range inv.tables {
		var list []verify.Unique
		for _, u := range all {
			into := dest.Table(u.part.Name)
			if u.of != t || u.primary || !m.split(u) || u.twice() || into == nil {
				continue
			}
			list = append(list, verify.Unique{Name: u.name, Table: into, Key: request.Tables[i].Key, Columns: u.expressions, Where: u.where, NullsEqual: u.nullsEqual})
		}
		if len(list) == 0 {
			continue
		}
		if err := report.Tables[i].AddUniques(ctx, request, list); err != nil {
			return err
		}
	}
	return nil
}
