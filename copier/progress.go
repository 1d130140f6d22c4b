package copier

import (
	"cmp"
	"slices"
	"sync"

	"pgreshard/pg"
)

// Progress counts, table by table, what has been copied. It may be read and written by several at once; the zero value
// is empty.
type Progress struct {
	mu     sync.Mutex
	tables map[pg.Name]*TableProgress
}

// TableProgress is how far the copy of one destination table is; the leaves of a partitioned table count together.
type TableProgress struct {
	Table              pg.Name
	Chunks, ChunksDone int
	Size, SizeDone     int64 // bytes of heap and TOAST on the source
	Rows, Bytes        int64 // read by this process, in COPY's format
}

// Expect adds chunks to what is to be done.
func (p *Progress) Expect(chunks []*pg.Chunk) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range chunks {
		t := p.table(c)
		t.Chunks++
		t.Size += c.Bytes
	}
}

// Done counts a chunk as held, with the rows and bytes read for it: none for one an earlier run has read.
func (p *Progress) Done(c *pg.Chunk, rows, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.table(c)
	t.ChunksDone++
	t.SizeDone += c.Bytes
	t.Rows += rows
	t.Bytes += bytes
}

func (p *Progress) table(c *pg.Chunk) *TableProgress {
	name := c.Copy.Into.Name
	if p.tables == nil {
		p.tables = map[pg.Name]*TableProgress{}
	}
	if p.tables[name] == nil {
		p.tables[name] = &TableProgress{Table: name}
	}
	return p.tables[name]
}

// Tables lists all tables as they stand now, by name.
func (p *Progress) Tables() []TableProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]TableProgress, 0, len(p.tables))
	for _, t := range p.tables {
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b TableProgress) int {
		return cmp.Or(cmp.Compare(a.Table.Schema, b.Table.Schema), cmp.Compare(a.Table.Table, b.Table.Table))
	})
	return out
}
