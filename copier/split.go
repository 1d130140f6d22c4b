package copier

import (
	"cmp"

	"pgreshard/pg"
)

// Chunks of a table hold between smallChunk and bigChunk bytes of heap and TOAST, and where the table is large enough
// for it there are several for each worker, so that none is left with a long last one.
const (
	bigChunk        = 64 << 20
	smallChunk      = 8 << 20
	chunksPerWorker = 4
)

// ChunkPages is how many blocks a chunk of this table should have. A resumed copy must split the table by the same
// number again (marks name chunks, not blocks), so it is kept with the move.
func ChunkPages(t *pg.Table, workers int) uint32 {
	size := t.Bytes / int64(chunksPerWorker*max(workers, 1))
	size = min(max(size, smallChunk), bigChunk)
	n := max(1, (t.Bytes+size-1)/size)
	return uint32(max(1, (t.Pages+n-1)/n))
}

// Split cuts a table into chunks of so many blocks; the last is open-ended. A table that has grown since gets more of
// them, the earlier ones are the same blocks as before. An empty table is one chunk.
func Split(c *pg.Copy, pages uint32) []*pg.Chunk {
	pages = cmp.Or(pages, 1)
	n := max(1, (c.From.Pages+int64(pages)-1)/int64(pages))
	chunks := make([]*pg.Chunk, n)
	for i := range chunks {
		from := uint32(i) * pages
		chunks[i] = &pg.Chunk{Copy: c, Number: i, From: from, To: from + pages, Bytes: c.From.Bytes / n}
	}
	chunks[n-1].To = pg.ToTheEnd
	return chunks
}
