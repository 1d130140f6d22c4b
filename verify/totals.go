package verify

import (
	"context"
	"fmt"
	"math/big"
	"sync"

	"golang.org/x/sync/errgroup"
)

// NodeTotal is what all rows of a table on one node add up to.
type NodeTotal struct {
	Number int   `json:"shard"`
	Rows   int64 `json:"rows"`
	// Hash is two sums of hashes over all rows, each modulo 2^64, in hexadecimal. Those of a sharded table's shards add up to those of
	// its sources; those of a copy are equal.
	Hash string `json:"hash"`
}

// TableTotals is what a table adds up to on every node.
type TableTotals struct {
	Table   string      `json:"table"`
	Omni    bool        `json:"omnisharded,omitempty"`
	Sources []NodeTotal `json:"sources"`
	Shards  []NodeTotal `json:"shards"`
	Equal   bool        `json:"equal"` // bucket by bucket, not only in sum
}

// Totals reads every table of r whole, on every node, and tells done of each as soon as it was; done is called by one goroutine at a time.
func Totals(ctx context.Context, r Request, done func(TableTotals)) error {
	v, err := begin(ctx, r)
	if err != nil {
		return err
	}
	defer v.close()
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(v.Parallel)
	for _, i := range largestFirst(r.Tables) {
		group.Go(func() error {
			t, err := v.totals(ctx, &v.Tables[i])
			if err != nil {
				return fmt.Errorf("add up %s: %w", v.Tables[i].Dest.Name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			done(t)
			return nil
		})
	}
	return group.Wait()
}

func (v *verifier) totals(ctx context.Context, t *Table) (TableTotals, error) {
	all := v.all()
	each := make([]sums, len(all))
	group, inner := errgroup.WithContext(ctx)
	for i, n := range all {
		group.Go(func() (err error) { each[i], err = v.sums(inner, t, v.side(t, n)); return err })
	}
	out := TableTotals{Table: t.Dest.Name.String(), Omni: t.Omni, Equal: true}
	err := group.Wait()
	if err == nil {
		err = v.asItWas(ctx, t, all)
	}
	if err != nil {
		return out, err
	}
	left, right := sums{}, sums{}
	for i, n := range all {
		total := NodeTotal{Number: n.Number, Rows: each[i].rows(), Hash: each[i].hash()}
		if n.side == "source" {
			out.Sources = append(out.Sources, total)
			left.addAll(each[i])
		} else {
			out.Shards = append(out.Shards, total)
			right.addAll(each[i])
		}
		if list, _ := differing(each[0], each[i]); t.Omni && len(list) > 0 {
			out.Equal = false
		}
	}
	if list, _ := differing(left, right); !t.Omni && len(list) > 0 {
		out.Equal = false
	}
	return out, nil
}

// addAll adds another part of a table.
func (s sums) addAll(o sums) {
	for k, one := range o {
		if s[k] == nil {
			s[k] = &sum{}
		}
		s[k].add(one)
	}
}

// hash is what all buckets add up to.
func (s sums) hash() string {
	var all sum
	for _, one := range s {
		all.add(one)
	}
	word := new(big.Int).Lsh(big.NewInt(1), 64)
	return fmt.Sprintf("%016x%016x", all.a.Mod(&all.a, word), all.b.Mod(&all.b, word))
}
