# What a contributor runs. Every target sets up what it needs (deploy/setup.sh says what it does) and may be the first.

SHELL := /bin/bash
.DEFAULT_GOAL := build

# Go is where deploy/setup.sh finds it, asked when a recipe runs: the same make may have installed it.
WITH_GO = export PATH="$$(deploy/setup.sh --path)" &&

PACKAGES    ?= ./...
TEST_FLAGS  ?=
TIMEOUT     ?= 40m
FUZZ_TIME   ?= 30s
SEEDS       ?= 200
LEADERS     ?= 20
ROUNDS      ?= 20
KILLS       ?= 10
# Rounds of torture at once, each on three servers of its own.
AT_ONCE     ?= 2
# Tests start real servers: packages beside each other cost memory more than they save time.
PARALLEL    ?= 2
# bench: copy, catchup, lookup, verify or all, whose sizes are in docs/performance.md; or freeze, or fanout.
BENCH       ?= all
# Where screenshot leaves the picture.
PICTURE     ?= bin/page.png

.PHONY: build demo test test-all test-versions property remap model failover alarms leaders race bench memory scale forecast faults torture fuzz lint screenshot setup clean

build: setup            ## the static binary, bin/pgreshard
	$(WITH_GO) CGO_ENABLED=0 go build -trimpath -o bin/pgreshard ./cmd/pgreshard

demo: build             ## a whole move on throw-away servers, with writers
	bin/pgreshard demo

test: setup             ## every test, on real servers
	$(WITH_GO) go test -timeout $(TIMEOUT) -p $(PARALLEL) $(TEST_FLAGS) $(PACKAGES)

test-all: setup         ## every case of every test, where `make test` draws some
	$(WITH_GO) PGRESHARD_TEST_ALL=1 go test -timeout 120m -p $(PARALLEL) $(TEST_FLAGS) $(PACKAGES)

# The suites whose outcome may depend on the server's version: values, identities, partitions, slots that a standby keeps.
VERSION_TESTS ?= Value|Types|Encoding|Identit|Partition|Key|Case0|SourceFailsOver

# source:destination
PAIRS         ?= 14:14 15:15 16:16 17:17 18:18 14:18

test-versions: setup    ## those suites on 14, 15, 16, 17, 18, and from 14 to 18
	@$(WITH_GO) PGRESHARD_PG_DIRS="$$(pgtest/versions.sh $(sort $(subst :, ,$(PAIRS))))" && export PGRESHARD_PG_DIRS && \
	tools="$$(pgtest/versions.sh --tools)" && export PATH="$${tools:+$$tools:}$$PATH" && failed="" && \
	for pair in $(PAIRS); do \
		echo "== PostgreSQL $${pair%:*} to $${pair#*:}"; \
		PGRESHARD_TEST_SOURCE=$${pair%:*} PGRESHARD_TEST_DEST=$${pair#*:} \
			go test -count=1 -timeout $(TIMEOUT) -p 1 -run '$(VERSION_TESTS)' $(TEST_FLAGS) ./move ./sink ./copier ./verify ./layout || failed="$$failed $$pair"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

property: setup         ## random tables and transactions through whole moves, SEEDS of them
	$(WITH_GO) PROPERTY_SEEDS=$(SEEDS) go test -v -count 1 -timeout 180m -run '^TestRandomSchemasArriveWhole$$' $(TEST_FLAGS) ./move

remap: setup            ## mappings that change at random, from one source and from two, SEEDS of each (REMAP_SEED runs one again)
	$(WITH_GO) REMAP_SEEDS=$(SEEDS) go test -v -count 1 -timeout 300m -parallel 2 -run '^TestRandomMappingsAreFollowed$$' $(TEST_FLAGS) ./move

failover: setup         ## a worker killed at random KILLS times through a move of three sources, another taking over (FAILOVER_SEED runs one again)
	$(WITH_GO) FAILOVERS=$(KILLS) go test -v -count 1 -timeout 60m -run '^TestThereIsAlwaysOneWorkerAndNeverTwo$$' $(TEST_FLAGS) ./cmd/pgreshard

alarms: setup           ## RUNS comparisons beside 500 writing transactions a second on 19 tables: none may find what is not there
	$(WITH_GO) ALARM_RUNS=$(or $(RUNS),100) go test -v -count 1 -timeout 180m -run '^TestNoComparisonFindsWhatIsNotThere$$' $(TEST_FLAGS) ./move

leaders: setup          ## random changes of a shard's leader, LEADERS times 300 of them
	$(WITH_GO) LEADER_SEEDS=$(LEADERS) go test -v -count 1 -timeout 60m -run '^TestNothingIsOpenedWhereTheShardDoesNotLead$$' $(TEST_FLAGS) ./pg

model: setup            ## the protocol as a model: 200,000 random runs of each kind, and every way through the smallest
	$(WITH_GO) MODEL_LONG=1 go test -v -count 1 -timeout 180m -run '^TestModel' $(TEST_FLAGS) ./sink

race: setup             ## the tests under the race detector (needs a C compiler)
	$(WITH_GO) CGO_ENABLED=1 go test -race -timeout $(TIMEOUT) -p $(PARALLEL) $(TEST_FLAGS) $(PACKAGES)

bench: setup            ## copy and catch-up beside native replication, in one run (docs/performance.md)
	$(WITH_GO) BENCH=$(BENCH) go test -v -count 1 -timeout 180m -run '^TestBench$$' $(TEST_FLAGS) ./move

memory: setup           ## peak memory beside a table of 2 GB, a transaction of a million rows (12 GB of disk), and one of 5 million with a shard stalled for a minute; a row of 100 MB, 100,000 savepoints
	$(WITH_GO) PGRESHARD_TEST_MEMORY=1 go test -v -count 1 -timeout 120m -run '^TestTheWorkerStaysSmall|VeryLargeRow|ManySavepoints' $(TEST_FLAGS) ./cmd/pgreshard ./move

scale: setup            ## connections, memory and processor time of one worker, up to 8 sources and 16 shards (docs/scale.md)
	$(WITH_GO) PGRESHARD_TEST_SCALE=1 go test -v -count 1 -timeout 60m -run '^TestAWorkerOpensNoMoreConnectionsThanPlanned$$' $(TEST_FLAGS) ./cmd/pgreshard

forecast: setup         ## what plan foretells of three sets of data, held against their moves; on a machine that does nothing else
	$(WITH_GO) PGRESHARD_TEST_FORECAST=1 go test -v -count 1 -timeout 30m -run '^TestAForecastComesTrue$$' $(TEST_FLAGS) ./move

torture: setup          ## ROUNDS random moves under random faults, each with a seed of its own (TORTURE_SEED runs one again)
	$(WITH_GO) TORTURE_ROUNDS=$(ROUNDS) go test -v -count 1 -timeout 24h -parallel $(AT_ONCE) -run '^TestWhateverFailsAtRandomNothingIsLost$$' $(TEST_FLAGS) ./cmd/pgreshard

faults: setup           ## every fault at every victim and point of a move (docs/operations.md, "What was made to fail")
	$(WITH_GO) PGRESHARD_TEST_FAULTS=1 go test -v -count 1 -timeout 60m -parallel 2 -run '^TestWhateverFailsWhereverNothingIsLost$$' $(TEST_FLAGS) ./cmd/pgreshard

fuzz: setup             ## each fuzz test for FUZZ_TIME
	@$(WITH_GO) for package in $$(go list $(PACKAGES)); do \
		for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz'); do \
			echo "fuzz $$package $$target"; \
			go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZ_TIME) $$package || exit 1; \
		done; \
	done

lint: setup             ## formatting, vet, staticcheck
	@$(WITH_GO) unformatted=$$(gofmt -l $$(find . -name '*.go' -not -path './.*')); \
	if [ -n "$$unformatted" ]; then echo "not formatted (gofmt -w them):"; echo "$$unformatted"; exit 1; fi
	$(WITH_GO) go vet $(PACKAGES)
	$(WITH_GO) go tool staticcheck $(PACKAGES)

screenshot: setup       ## a picture of the status page in a real cutover, in PICTURE (needs Chromium)
	@mkdir -p $(dir $(PICTURE))
	$(WITH_GO) PAGE_SCREENSHOT=$(abspath $(PICTURE)) go test -v -count 1 -timeout 10m -run '^TestThePageShowsAWholeMoveAndMakesTheCutover$$' $(TEST_FLAGS) ./cmd/pgreshard

setup:
	@deploy/setup.sh

clean:
	rm -rf bin
