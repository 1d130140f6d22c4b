// Package survey owns what is known of a source's rows before any of them moves: it reads a sample of a table's keys and
// says with which error what a layout would do with them: the shards' shares, what the next number of shards moves under
// each strategy, which keys are heavy and which grow.
//
// It reads little, in read-only transactions with a time limit, and does not know how rows are moved.
package survey
