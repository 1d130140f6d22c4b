package pgtest

import (
	"context"
	"fmt"
	"path/filepath"
)

// Fill takes all that is free of the file system of a cluster that has one of its own (Options.Room), until Free.
func (c *Cluster) Fill(ctx context.Context) error {
	ballast := quote(c.ballast())
	if _, err := c.keep.Do(ctx, "! dd if=/dev/zero bs=64k of="+ballast+" && test -s "+ballast); err != nil {
		return fmt.Errorf("fill the disk: %w", err)
	}
	return nil
}

// Free gives back what Fill took.
func (c *Cluster) Free(ctx context.Context) error {
	_, err := c.keep.Do(ctx, "rm -f "+quote(c.ballast()))
	return err
}

func (c *Cluster) ballast() string { return filepath.Join(c.keep.Dir, "ballast") }
