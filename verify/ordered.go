package verify

import (
	"fmt"
	"strings"

	"pgreshard/pg"
)

// A jsonb object, an hstore and a tsvector keep their parts in an order that depends on how the server's encoding writes
// them, so between servers of different encodings equal values have different texts. There each is hashed as the bytes
// of its parts in UTF-8, in the order of those.
const (
	orderedJSON = `(with recursive part (path, v) as (select '{}'::text[], %s
 union all select p.path || s.k, s.v from part p, lateral (
  select key, value from jsonb_each(case jsonb_typeof(p.v) when 'object' then p.v end)
  union all select n::text, value from jsonb_array_elements(case jsonb_typeof(p.v) when 'array' then p.v end) with ordinality a (value, n)) s (k, v))
 select string_agg(convert_to(path::text || case jsonb_typeof(v) when 'object' then '{' when 'array' then '[' else v::text end, 'UTF8'), '\x00'
  order by convert_to(path::text, 'UTF8')) from part)`
	orderedLexemes = `(select coalesce(string_agg(convert_to(array[own_l, own_p::text, own_w::text]::text, 'UTF8'), '\x00' order by convert_to(own_l, 'UTF8')), '')
 from unnest(%s) own (own_l, own_p, own_w) where %[1]s is not null having %[1]s is not null)`
	orderedElements = `(select convert_to(coalesce(array_dims(%[1]s), ''), 'UTF8') || coalesce(string_agg(coalesce(%[2]s, 'NULL'), '\x01' order by own_n), '')
 from unnest(%[1]s) with ordinality own_all (own_e, own_n) where %[1]s is not null having %[1]s is not null)`
)

const (
	typeJSONB    = 3802
	typeTSVector = 3614
)

// ordered is the expression a column is hashed by where the encodings differ and its parts are ordered; empty elsewhere.
func (e expressions) ordered(name string) string {
	own, other := e.column(name), e.other.Columns[index(e.other, name)]
	form := orderedForm(own)
	if !e.utf8 || form == "" || orderedForm(other) == "" {
		return ""
	}
	return strings.ReplaceAll(form, "%column", own.SQL())
}

// orderedForm is the expression over %column; both sides of a move have types of the same name.
func orderedForm(c pg.Column) string {
	element := func(value string, oid uint32, typ string) string {
		switch {
		case oid == typeJSONB:
			return fmt.Sprintf(orderedJSON, value+"::jsonb")
		case oid == typeTSVector:
			return fmt.Sprintf(orderedLexemes, value+"::tsvector")
		case strings.HasSuffix(typ, ".hstore"):
			return fmt.Sprintf(orderedJSON, typ+"_to_jsonb("+value+")")
		}
		return ""
	}
	if c.ElemOID == 0 {
		return element("%column", c.BaseOID, c.Type)
	}
	if form := element("own_e", c.ElemOID, strings.TrimSuffix(c.Type, "[]")); form != "" {
		return fmt.Sprintf(orderedElements, "%column", form)
	}
	return ""
}
