// Critical sections by the clients of etcd and of Redlock: lock, read a counter, write one more, unlock.
//
// The same closed loop as `fermata-bench section`: a worker begins a section when its last one ended; what began after the
// warm-up is counted, to its end. Prints `begin` and `end` around what is counted, then a line of JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sort"
	"strings"
	"sync"
	"time"
)

// How many workers share a connection, as in `fermata-bench`.
const workersPerConnection = 16

// After an error a worker pauses for so long, as in `fermata-bench`.
const pauseAfterError = 50 * time.Millisecond

// The time that a call has.
const callWithin = 30 * time.Second

// locker is one worker's lock of one key, and the counter that it guards.
type locker interface {
	lock(ctx context.Context) error
	read(ctx context.Context) (uint64, error)
	write(ctx context.Context, counter uint64) error
	unlock(ctx context.Context) error
}

// system makes lockers on shared connections.
type system interface {
	locker(ctx context.Context, worker int, key string) (locker, error)
	close()
}

// tally is what is known of one key: increments that were acknowledged, and those of unknown outcome.
type tally struct {
	sync.Mutex
	acknowledged, unknown uint64
}

// guarded is one key that a worker locks.
type guarded struct {
	locker
	tally *tally
	key   string
}

type worker struct {
	// The keys that it locks, and which of them next.
	guarded []guarded
	pick    func() (int, error)
	times   []time.Duration
	kinds   map[string]int
	last    time.Time
}

// section does one; whether its increment was acknowledged.
func (w guarded) section(ctx context.Context) error {
	if err := w.lock(ctx); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	err := w.increment(ctx)
	if unlocked := w.unlock(ctx); unlocked != nil && err == nil {
		err = fmt.Errorf("unlock: %w", unlocked)
	}
	return err
}

func (w guarded) increment(ctx context.Context) error {
	counter, err := w.read(ctx)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if err := w.write(ctx, counter+1); err != nil {
		w.tally.Lock()
		w.tally.unknown++
		w.tally.Unlock()
		return fmt.Errorf("write: %w", err)
	}
	w.tally.Lock()
	w.tally.acknowledged++
	w.tally.Unlock()
	return nil
}

// run does sections until `until`, and counts those that began at `from` or later.
func (w *worker) run(from, until time.Time) {
	for {
		begun := time.Now()
		if !begun.Before(until) {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), callWithin)
		at, err := w.pick()
		if err == nil {
			err = w.guarded[at].section(ctx)
		}
		cancel()
		ended := time.Now()
		if err != nil {
			w.kinds[err.Error()]++
			time.Sleep(pauseAfterError)
			continue
		}
		if !begun.Before(from) {
			w.times = append(w.times, ended.Sub(begun))
			w.last = ended
		}
	}
}

// report is a line of JSON.
type report struct {
	System   string         `json:"system"`
	Keys     string         `json:"keys"`
	Workers  int            `json:"workers"`
	Sections int            `json:"sections"`
	PerS     float64        `json:"sections_per_s"`
	P50us    int64          `json:"p50_us"`
	P99us    int64          `json:"p99_us"`
	P999us   int64          `json:"p999_us"`
	MaxUs    int64          `json:"max_us"`
	Least    int            `json:"least_of_a_worker"`
	Most     int            `json:"most_of_a_worker"`
	Errors   int            `json:"errors"`
	Kinds    map[string]int `json:"error_kinds,omitempty"`
	Lost     uint64         `json:"lost"`
	Surplus  uint64         `json:"surplus"`
}

func percentile(sorted []time.Duration, of float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	at := int(of*float64(len(sorted))+0.9999999) - 1
	return sorted[max(0, min(at, len(sorted)-1))].Microseconds()
}

func main() {
	if err := bench(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func bench() error {
	name := flag.String("system", "", "etcd-mutex, etcd-txn, etcd-v3lock or redlock")
	endpoints := flag.String("endpoints", "", "HOST:PORT, with commas between")
	count := flag.Int("workers", 1, "how many")
	keys := flag.String("keys", "own", "own: a key for each worker; one: one for all; new: another one for each section; near: most often one of a part of them")
	keyCount := flag.Int("key-count", 30, "of near: how many keys")
	part := flag.Int("near-part", 1, "of near: which part of the keys is this client's, from 1 on")
	parts := flag.Int("near-parts", 3, "of near: into how many parts they are cut")
	share := flag.Float64("near-share", 0.9, "of near: how often a section is on a key of that part, of 1")
	prefix := flag.String("prefix", "", "of the names of the keys; new in each run")
	warmUp := flag.Duration("warm-up", 2*time.Second, "what is not counted")
	duration := flag.Duration("duration", 10*time.Second, "what is")
	ttl := flag.Duration("ttl", 30*time.Second, "of a lock or of its session")
	bytes := flag.Int("value-bytes", 64, "the length of a value")
	flag.Parse()
	if *keys != "own" && *keys != "one" && *keys != "new" && *keys != "near" {
		return fmt.Errorf("--keys is %q: own, one, new or near", *keys)
	}
	if *parts < 2 || *part < 1 || *part > *parts || *keyCount < *parts {
		return fmt.Errorf("--near-part is %d of %d, of %d keys", *part, *parts, *keyCount)
	}
	if *count < 1 {
		return fmt.Errorf("--workers is %d: 1 or more", *count)
	}
	addresses := strings.Split(*endpoints, ",")
	connections := (*count + workersPerConnection - 1) / workersPerConnection
	var sys system
	var err error
	switch *name {
	case "etcd-mutex", "etcd-txn", "etcd-v3lock":
		sys, err = newEtcd(addresses, connections, *ttl, *bytes, *name)
	case "redlock":
		sys, err = newRedlock(addresses, *ttl, *bytes)
	default:
		err = fmt.Errorf("--system is %q", *name)
	}
	if err != nil {
		return err
	}
	defer sys.close()

	tallies := map[string]*tally{}
	workers := make([]*worker, *count)
	for i := range workers {
		names := []string{*prefix + "one"}
		w := &worker{pick: func() (int, error) { return 0, nil }, kinds: map[string]int{}}
		guard := func(key string, tally *tally) error {
			ctx, cancel := context.WithTimeout(context.Background(), callWithin)
			defer cancel()
			l, err := sys.locker(ctx, i, key)
			if err == nil {
				w.guarded = append(w.guarded, guarded{locker: l, tally: tally, key: key})
			}
			return err
		}
		switch *keys {
		case "own":
			names[0] = fmt.Sprintf("%s%d", *prefix, i)
		case "near":
			names = names[:0]
			for at := range *keyCount {
				names = append(names, fmt.Sprintf("%snear/%d", *prefix, at))
			}
			w.pick = func() (int, error) { return near(*keyCount, *part-1, *parts, *share), nil }
		case "new":
			// A first one before the load begins, which makes the session.
			names[0] = fmt.Sprintf("%snew/%d/0", *prefix, i)
			w.pick = func() (int, error) {
				at := len(w.guarded)
				return at, guard(fmt.Sprintf("%snew/%d/%d", *prefix, i, at), &tally{})
			}
		}
		for _, key := range names {
			if tallies[key] == nil {
				tallies[key] = &tally{}
			}
			if err := guard(key, tallies[key]); err != nil {
				return err
			}
		}
		workers[i] = w
	}

	from := time.Now().Add(*warmUp)
	until := from.Add(*duration)
	var all sync.WaitGroup
	for _, w := range workers {
		all.Go(func() { w.run(from, until) })
	}
	time.Sleep(time.Until(from))
	fmt.Println("begin")
	time.Sleep(time.Until(until))
	fmt.Println("end")
	all.Wait()

	r, err := sum(workers, from)
	if err != nil {
		return err
	}
	r.System, r.Keys, r.Workers = *name, *keys, *count
	return json.NewEncoder(os.Stdout).Encode(r)
}

func sum(workers []*worker, from time.Time) (report, error) {
	r := report{Kinds: map[string]int{}, Least: len(workers[0].times)}
	var times []time.Duration
	last := from
	seen := map[string]bool{}
	for _, w := range workers {
		times = append(times, w.times...)
		r.Least, r.Most = min(r.Least, len(w.times)), max(r.Most, len(w.times))
		if w.last.After(last) {
			last = w.last
		}
		for kind, n := range w.kinds {
			r.Kinds[kind] += n
			r.Errors += n
		}
		for _, g := range w.guarded {
			if seen[g.key] {
				continue
			}
			seen[g.key] = true
			ctx, cancel := context.WithTimeout(context.Background(), callWithin)
			counter, err := g.read(ctx)
			cancel()
			if err != nil {
				return r, errors.Join(errors.New("the counter cannot be read afterwards"), err)
			}
			if counter < g.tally.acknowledged {
				r.Lost += g.tally.acknowledged - counter
			}
			if most := g.tally.acknowledged + g.tally.unknown; counter > most {
				r.Surplus += counter - most
			}
		}
	}
	sort.Slice(times, func(a, b int) bool { return times[a] < times[b] })
	r.Sections = len(times)
	if spent := last.Sub(from); spent > 0 {
		r.PerS = float64(len(times)) / spent.Seconds()
	}
	r.P50us, r.P99us = percentile(times, 0.5), percentile(times, 0.99)
	r.P999us, r.MaxUs = percentile(times, 0.999), percentile(times, 1)
	return r, nil
}

// near is the key of a section, of so many: most often of this part, else of one of the others, as in `fermata-bench`.
func near(count, own, parts int, share float64) int {
	part := own
	if rand.Float64() >= share {
		part = rand.IntN(parts - 1)
		if part >= own {
			part++
		}
	}
	keys := (count + parts - 1 - part) / parts
	return part + parts*rand.IntN(keys)
}

// encode writes a counter as a value of so many bytes.
func encode(counter uint64, bytes int) string {
	return fmt.Sprintf("%0*d", bytes, counter)
}

// decode reads it; nothing is 0.
func decode(value string) (uint64, error) {
	var counter uint64
	for _, digit := range []byte(value) {
		if digit < '0' || digit > '9' {
			return 0, fmt.Errorf("the value is no counter: %q", value)
		}
		counter = counter*10 + uint64(digit-'0')
	}
	return counter, nil
}
