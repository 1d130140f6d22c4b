package sink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// A shard of a load has up to loadBuffers buffers: one that is being filled, one that is being written, one between
// them. They are of the size at which a COPY is fastest, or smaller where many shards would make them too much memory.
const (
	loadBuffers   = 3
	bigBuffer     = 256 << 10
	smallBuffer   = 32 << 10
	buffersMemory = 16 << 20 // of one loader
)

func bufferSize(shards int) int {
	return min(bigBuffer, max(smallBuffer, buffersMemory/(loadBuffers*max(shards, 1))))
}

// spareBuffers is room for a shard's buffers; a nil one is made when it is taken.
func spareBuffers() chan []byte {
	spare := make(chan []byte, loadBuffers)
	for range loadBuffers {
		spare <- nil
	}
	return spare
}

// COPY's binary format: what comes before the first row and after the last.
const (
	copyHeader  = "PGCOPY\n\xff\r\n\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00"
	copyTrailer = "\xff\xff"
)

// copyDataHeader is the room kept in front of a buffer for the message's type and length.
const copyDataHeader = 5

// shardLoad is one shard's part of a chunk: the worker fills buffers, run writes them.
type shardLoad struct {
	loader *Loader
	load   *load
	number int
	size   int
	spare  chan []byte
	full   chan []byte // nil until there is a row; closed by end
	buffer []byte      // being filled
	rows   int64
}

// add copies a row into buffers; one that is larger than a buffer is cut, as COPY's messages may end anywhere.
func (s *shardLoad) add(row []byte) error {
	if s.full == nil {
		s.full = make(chan []byte, loadBuffers)
		s.load.group.Go(s.run)
		if s.load.chunk.Copy.Binary {
			if err := s.put(copyHeader); err != nil {
				return err
			}
		}
	}
	s.rows++
	return fill(s, row)
}

func (s *shardLoad) put(b string) error { return fill(s, b) }

func fill[B []byte | string](s *shardLoad, b B) error {
	for {
		if s.buffer == nil {
			select {
			case s.buffer = <-s.spare:
			case <-s.load.ctx.Done():
				return context.Cause(s.load.ctx)
			}
			if s.buffer == nil {
				s.buffer = make([]byte, 0, s.size)
			}
			s.buffer = s.buffer[:copyDataHeader]
		}
		n := min(len(b), cap(s.buffer)-len(s.buffer))
		s.buffer = append(s.buffer, b[:n]...)
		if b = b[n:]; len(b) == 0 {
			return nil
		}
		s.send()
	}
}

// send hands a filled buffer to run. There are no more buffers than full has room for, so it never waits.
func (s *shardLoad) send() {
	s.buffer[0] = 'd'
	binary.BigEndian.PutUint32(s.buffer[1:], uint32(len(s.buffer)-1))
	s.full <- s.buffer
	s.buffer = nil
}

// end hands over what is left; a shard without rows only gets its mark.
func (s *shardLoad) end() error {
	if s.full == nil {
		s.load.group.Go(s.run)
		return nil
	}
	if s.load.chunk.Copy.Binary {
		if err := s.put(copyTrailer); err != nil {
			return err
		}
	}
	if s.buffer != nil {
		s.send()
	}
	close(s.full)
	return nil
}

// run writes the shard's part and commits it with its mark. After an error the connection is closed.
func (s *shardLoad) run() error {
	ctx, shard := s.load.ctx, s.loader.Shards[s.number]
	conn, err := s.connect(ctx)
	if err == nil {
		err = s.write(ctx, conn)
	}
	if err == nil {
		return nil
	}
	if conn != nil {
		_ = conn.PgConn().Conn().Close()
		pg.Close(conn)
		<-conn.PgConn().CleanupDone()
		s.loader.conns[s.number] = nil
	}
	return fmt.Errorf("load into %s: %w", shard, err)
}

func (s *shardLoad) connect(ctx context.Context) (*pgx.Conn, error) {
	conn := s.loader.conns[s.number]
	if conn != nil {
		return conn, nil
	}
	conn, err := pg.Open(ctx, s.loader.Shards[s.number], pg.Writer, s.loader.App)
	s.loader.conns[s.number] = conn
	return conn, err
}

func (s *shardLoad) write(ctx context.Context, conn *pgx.Conn) error {
	c := s.load.chunk.Copy
	if s.full == nil {
		return s.commit(ctx, conn, nil)
	}
	begin, after := loadSQL(c, s.load.table.Upsert)
	rows, err := copyIn(ctx, conn.PgConn(), begin, s.full, s.spare)
	if err != nil {
		return err
	}
	if rows != s.rows {
		return fmt.Errorf("%d rows were sent to %s and it took %d; hint: does a rule or trigger there drop rows?", s.rows, c.Into.Name, rows)
	}
	return s.commit(ctx, conn, after)
}

// commit sends what remains in one round trip: the statements that bring the rows from where COPY put them, the mark,
// COMMIT. The server skips everything after the first that fails.
func (s *shardLoad) commit(ctx context.Context, conn *pgx.Conn, statements []loadStatement) (err error) {
	batch := &pgx.Batch{}
	for _, st := range statements {
		batch.Queue(st.sql)
	}
	sql, args := s.loader.Mark(s.load.chunk, s.number)
	batch.Queue(sql, args...)
	if s.full != nil {
		batch.Queue("commit")
	}
	results := conn.SendBatch(ctx, batch)
	defer func() {
		if failed := results.Close(); err == nil {
			err = failed
		}
	}()
	for _, st := range statements {
		tag, err := results.Exec()
		if err != nil {
			return err
		}
		if st.each && tag.RowsAffected() != s.rows {
			return fmt.Errorf("%d rows were to be written to %s and %d were", s.rows, s.load.chunk.Copy.Into.Name, tag.RowsAffected())
		}
	}
	if _, err := results.Exec(); err != nil {
		if pg.Code(err) == "23505" {
			err = fmt.Errorf("%w (%w)", ErrMarked, err)
		}
		return fmt.Errorf("mark the chunk: %w", err)
	}
	if s.full == nil {
		return nil
	}
	tag, err := results.Exec()
	if err == nil && tag.String() != "COMMIT" {
		err = errors.New("the server answered COMMIT with " + tag.String())
	}
	return err
}
