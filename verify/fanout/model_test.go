package fanout

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The model of an answer: rows in memory, fractions that are never rounded, and no notion of parts.

const modelTable = `(region text, kind int not null, qty bigint, amount numeric, price float8, note text)`

type modelRow struct{ region, qty, amount, price, note *string }

// modelRowOf makes a row of few values, so that groups meet.
func modelRowOf(r *rand.Rand) modelRow {
	pick := func(list ...string) *string {
		if n := r.IntN(len(list) + 1); n < len(list) {
			return &list[n]
		}
		return nil
	}
	return modelRow{
		region: pick("eu", "us", "EU", ""), qty: pick("7", "-3", "0", "9223372036854775807", "9223372036854775807"),
		amount: pick("1.0", "1.00", "-0.005", "123456789012345678901234567890.123", "0"), price: pick("0.1", "0.2", "1e-300", "3e20", "-7.25"),
		note: pick("b", "a", "B", "ä", "z"),
	}
}

func (m modelRow) insert(kind int) string {
	literal := func(s *string) string {
		if s == nil {
			return "null"
		}
		return "'" + *s + "'"
	}
	return fmt.Sprintf("(%s, %d, %s, %s, %s, %s)", literal(m.region), kind, literal(m.qty), literal(m.amount), literal(m.price), literal(m.note))
}

// modelGroup is what there is to know of one group.
type modelGroup struct {
	count                int
	n                    map[string]int
	sum                  map[string]*big.Rat
	noteLeast, noteMost  *string
	amountLeast, qtyMost *big.Rat
}

// rat is a decimal number, exactly.
func rat(text string) *big.Rat {
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		panic("not a number: " + text)
	}
	return r
}

func (g *modelGroup) add(m modelRow) {
	g.count++
	for name, value := range map[string]*string{"qty": m.qty, "amount": m.amount, "price": m.price} {
		if value == nil {
			continue
		}
		g.n[name]++
		if g.sum[name] == nil {
			g.sum[name] = new(big.Rat)
		}
		g.sum[name].Add(g.sum[name], rat(*value))
	}
	if m.note != nil {
		if g.noteLeast == nil || *m.note < *g.noteLeast {
			g.noteLeast = m.note
		}
		if g.noteMost == nil || *m.note > *g.noteMost {
			g.noteMost = m.note
		}
	}
	if m.amount != nil && (g.amountLeast == nil || rat(*m.amount).Cmp(g.amountLeast) < 0) {
		g.amountLeast = rat(*m.amount)
	}
	if m.qty != nil && (g.qtyMost == nil || rat(*m.qty).Cmp(g.qtyMost) > 0) {
		g.qtyMost = rat(*m.qty)
	}
}

// groupKey is one text for what the server takes for one group.
func groupKey(columns []string, values []*string) string {
	var parts []string
	for i, c := range columns {
		switch {
		case values[i] == nil:
			parts = append(parts, "null")
		case c == "amount":
			parts = append(parts, rat(*values[i]).String())
		default:
			parts = append(parts, strconv.Quote(*values[i]))
		}
	}
	return strings.Join(parts, ",")
}

// modelOf groups rows, given by kind.
func modelOf(by []string, rows map[int][]modelRow) map[string]*modelGroup {
	groups := map[string]*modelGroup{}
	for kind, list := range rows {
		k := strconv.Itoa(kind)
		for _, m := range list {
			var values []*string
			for _, c := range by {
				values = append(values, map[string]*string{"region": m.region, "kind": &k, "amount": m.amount}[c])
			}
			key := groupKey(by, values)
			if groups[key] == nil {
				groups[key] = &modelGroup{n: map[string]int{}, sum: map[string]*big.Rat{}}
			}
			groups[key].add(m)
		}
	}
	if len(by) == 0 && len(groups) == 0 {
		groups[""] = &modelGroup{}
	}
	return groups
}

// wrong says how a value is not what the model has; empty where it is.
func (g *modelGroup) wrong(aggregate string, got *string) string {
	function, column, _ := strings.Cut(strings.TrimSuffix(aggregate, ")"), "(")
	var want *big.Rat
	switch {
	case aggregate == "count":
		want = new(big.Rat).SetInt64(int64(g.count))
	case function == "count":
		want = new(big.Rat).SetInt64(int64(g.n[column]))
	case column == "note":
		text := g.noteLeast
		if function == "max" {
			text = g.noteMost
		}
		if (text == nil) != (got == nil) || text != nil && *text != *got {
			return fmt.Sprintf("%s, want %s", shown(got), shown(text))
		}
		return ""
	case aggregate == "min(amount)":
		want = g.amountLeast
	case aggregate == "max(qty)":
		want = g.qtyMost
	default:
		want = g.sum[column]
	}
	if want == nil || got == nil {
		if (want == nil) != (got == nil) {
			return fmt.Sprintf("%s, want %v", shown(got), want)
		}
		return ""
	}
	is, most := rat(*got), new(big.Rat)
	if function == "avg" { // rounded once, at its last digit
		want = new(big.Rat).Quo(want, new(big.Rat).SetInt64(int64(g.n[column])))
		_, digits, _ := strings.Cut(*got, ".")
		most.Quo(big.NewRat(1, 2), new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(len(digits))), nil)))
		if len(strings.TrimLeft(strings.Replace(*got, ".", "", 1), "-0")) < 16 && want.Cmp(is) != 0 {
			return fmt.Sprintf("%s has few digits for %s", *got, want.FloatString(30))
		}
	}
	if d := new(big.Rat).Sub(is, want); d.Abs(d).Cmp(most) > 0 {
		return fmt.Sprintf("%s, want %s", *got, want.FloatString(40))
	}
	return ""
}

func shown(s *string) string {
	if s == nil {
		return "null"
	}
	return strconv.Quote(*s)
}

// sameAsModel compares every group of an answer.
func sameAsModel(t *testing.T, by, aggregates []string, rows []Row, model map[string]*modelGroup) {
	t.Helper()
	var seen []string
	for _, row := range rows {
		key := groupKey(by, row.Group)
		g := model[key]
		if g == nil || slices.Contains(seen, key) {
			t.Errorf("group %s is there once too often", key)
			continue
		}
		seen = append(seen, key)
		for i, a := range aggregates {
			if wrong := g.wrong(a, row.Values[i]); wrong != "" {
				t.Errorf("%s of group %s: %s", a, key, wrong)
			}
		}
	}
	if len(seen) != len(model) {
		t.Errorf("%d groups, want %d", len(seen), len(model))
	}
}
