//! Histories that break one promise each: the rule that is broken, and how.

use super::history::check;
use super::written::histories;

#[test]
fn a_promise_that_is_broken_is_found_and_no_other() {
    for (title, events) in histories(BAD) {
        let (rule, how) = title.split_once(": ").unwrap();
        let checked = check(&events);
        let found = checked.violations.iter();
        let mut found: Vec<String> = found.map(|one| format!("{:?}", one.rule)).collect();
        found.dedup();
        assert_eq!(found, [rule], "{how}\n{}", checked.excerpt(&events));
    }
}

const BAD: &str = "
Exclusivity: two hold the key at one time
    a create   #1    0..1  held@10 until:30
    b create   #2    2..3  held@20 until:30
    a release  #1@10 4..5  done

Exclusivity: a holder is replaced before its time has passed
    a create   #1    0..1  held@10 until:30
    b create   #2    2..3  done until:40
    b acquire  #2    4..29 held@20 until:40
    a get      #1@10 31..32 refused:over

Exclusivity: a holder without a promised time is replaced while it works
    a create   #1    0..1  held@10
    b create   #2    2..3  done
    b acquire  #2    4..5  held@20
    a get      #1@10 6..7  =-

Exclusivity: a late answer promises a time in which another one holds
    a create   #1    0..5  held@10 until:30
    b create   #2    1..3  held@20 until:30

Exclusivity: a write shows that was asked for after the next holder was granted the lock
    a create   #1    0..1  held@10 until:10
    a put:x    #1@10 2..3  done until:12
    b create   #2    4..5  done until:60
    b acquire  #2    6..14 held@20 until:60
    a put:y    #1@10 15..16 done until:14
    b get      #2@20 18..19 =y

Exclusivity: a zombie writes over the next holder
    a create   #1    0..1  held@10 until:10
    b create   #2    4..5  done until:90
    b acquire  #2    6..14 held@20 until:90
    b put:x    #2@20 15..16 done until:90
    a put:y    #1@10 17..30 unknown
    b get      #2@20 18..19 =y

LatestState: an acknowledged write is lost
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  done
    a put:y    #1@10 4..5  done
    a release  #1@10 6..7  done
    b create   #2    8..9  held@20
    b get      #2@20 10..11 =x

LatestState: the first write of all is lost
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  done
    a release  #1@10 4..5  done
    b create   #2    6..7  held@20 =-

LatestState: an acknowledged write is lost when its holder expires
    a create   #1    0..1  held@10 until:10
    a put:x    #1@10 2..3  done until:12
    b create   #2    4..5  done until:90
    b acquire  #2    6..14 held@20 =- until:90

LatestState: an acknowledged write is lost by a take over
    a create   #1    0..1  held@10 until:90
    a put:x    #1@10 2..3  done until:90
    a get      #1@10 4..5  refused:superseded
    a acquire  #1    6..7  held@20 until:90
    a get      #1@20 8..9  =-

LatestState: a write is lost within its section
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  done
    a put:y    #1@10 4..5  done
    a get      #1@10 6..7  =x

LatestState: a deleted value comes back
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  done
    a put:-    #1@10 4..5  done
    a release  #1@10 6..7  done
    b create   #2    8..9  held@20 =x

LatestState: an unknown write shows and is gone again
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  done
    a put:y    #1@10 4..5  unknown
    a release  #1@10 6..7  done
    b create   #2    8..9  held@20 =y
    b release  #2@20 10..11 done
    c create   #3    12..13 held@30 =x

LatestState: an unknown write did not show and does later
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  done
    a put:y    #1@10 4..?  unknown
    a release  #1@10 6..7  done
    b create   #2    8..9  held@20 =x
    b get      #2@20 10..11 =y

LatestState: an unknown write shows after a later holder wrote
    a create   #1    0..1  held@10
    a put:y    #1@10 4..5  unknown
    a release  #1@10 6..7  done
    b create   #2    8..9  held@20
    b put:z    #2@20 10..11 done
    b release  #2@20 12..13 done
    c create   #3    14..15 held@30 =y

LatestState: an unknown write of an ordered client overtakes a later one
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  unknown in_order
    a put:y    #1@10 4..5  done in_order
    a get      #1@10 6..7  =x

LatestState: two unknown writes of an ordered client show in the wrong order
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  unknown in_order
    a put:y    #1@10 4..5  unknown in_order
    a get      #1@10 6..7  =y
    a get      #1@10 8..9  =x

LatestState: a refused put shows
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  done
    a put:y    #1@10 4..5  refused
    a get      #1@10 6..7  =y

LatestState: a value is read that nobody wrote
    a create   #1    0..1  held@10
    a get      #1@10 2..3  =x

LatestState: a value is read before it is written
    a create   #1    0..1  held@10
    a get      #1@10 2..3  =x
    a put:x    #1@10 4..5  done

LatestState: one whose time has passed reads what nobody wrote
    a create   #1    0..1  held@10 until:5
    a get      #1@10 9..10 =x

LatestState: a put carried by a release is lost
    a create     #1    0..1  held@10
    a release:x  #1@10 2..3  done
    b create     #2    4..5  held@20 =-

Fences: a fence falls from entry to entry
    a create   #1    0..4  held@20
    a release  #1@20 5..6  done
    b create   #2    3..8  held@10

Fences: two entries have one fence
    a create   #1    0..1  held@10
    a release  #1@10 2..3  done
    b create   #2    4..5  held@10

Fences: the fence of an entry falls
    a create   #1    0..1  held@20 until:90
    a acquire  #1    2..3  held@10 until:90

Fences: a higher entry is told of its fence first
    a create   #1    0..1  done until:5
    b create   #2    2..3  done until:90
    b acquire  #2    4..6  held@20 until:90
    b release  #2@20 7..8  done
    a acquire  #1    9..10 held@10 until:90

Order: a later create is ahead
    a create   #2    0..1  done until:2
    b create   #1    3..4  held@10 until:90

Order: a seq is given out twice
    a create   #1.1    0..1  done until:9
    b create   #1.2    2..3  done until:9

Order: one create has two entries
    a create:one  #1    0..1  done until:9
    a create:one  #2    2..3  done until:9

Order: a waiter is passed over
    a create   #1    0..1  held@10 until:90
    b create   #2    2..3  done until:90
    c create   #3    4..5  done until:90
    a release  #1@10 6..7  done
    c acquire  #3    8..9  held@20 until:90

End: a write is taken after the release
    a create   #1    0..1  held@10
    a release  #1@10 2..3  done
    a put:x    #1@10 4..5  done

End: a read is answered after the end was told
    a create   #1    0..1  held@10
    a get      #1@10 2..3  refused:over
    a get      #1@10 4..5  =-

End: an entry that has ended holds again
    a create   #1    0..1  held@10 until:9
    a renew    #1    12..13 refused:over
    a acquire  #1    14..15 held@10 until:90

End: a write is taken under an old grant
    a create   #1    0..1  held@10 until:90
    a acquire  #1    2..3  held@20 until:90
    a put:x    #1@10 4..5  done until:90
";
