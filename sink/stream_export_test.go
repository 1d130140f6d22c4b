package sink

import (
	"context"

	"pgreshard/layout"
	"pgreshard/pg"
)

// BeforeCommit calls fn before a shard commits rows; its error ends the stream as a crash at that moment would.
func (s *Stream) BeforeCommit(fn func(ctx context.Context, shard layout.Shard, end pg.LSN) error) {
	s.beforeCommit = fn
}
