// Package notice puts a copy of the serving layout on a notice board for applications: a key of a NATS JetStream
// key-value bucket. PostgreSQL alone decides which layout serves; the board is brought up to it by compare-and-set, and
// nothing waits for it. The connection to NATS, and a NATS server inside the process, serve package
// sink/jetstream too.
package notice
