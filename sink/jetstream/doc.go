// Package jetstream publishes changes and rows to a NATS JetStream stream, as Debezium envelopes in JSON. A Feed turns one
// source's changes into messages, in log order; a Publisher sends the messages of all feeds, so that the stream has them in the
// order in which they were given, each once, whatever breaks in between.
//
// It does not know how changes are read, what a slot is, or when to try again: a Publisher that has failed is of no more use.
package jetstream
