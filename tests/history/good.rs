//! Histories that a service which keeps its promises may give.

use super::history::check;
use super::written::histories;

#[test]
fn a_history_that_keeps_all_promises_is_accepted() {
    for (title, events) in histories(GOOD) {
        let checked = check(&events);
        let excerpt = checked.excerpt(&events);
        assert!(checked.violations.is_empty(), "{title}\n{excerpt}");
        assert_eq!(checked.operations, events.len(), "{title}");
    }
}

const GOOD: &str = "
one after the other
    a create   #1    0..1  held@10 until:30
    a get      #1@10 2..3  =-
    a put:x    #1@10 4..5  done until:35
    a get      #1@10 6..7  =x
    a release  #1@10 8..9  done
    b create   #2    10..11 held@20 =x until:41
    b put:-    #2@20 12..13 done
    b get      #2@20 14..15 =-
    b release  #2@20 16..17 done

a waiter is granted the lock before the release is answered
    a create   #1    0..1  held@10 until:30
    b create   #2    2..3  done until:30
    b acquire  #2    4..7  held@20 until:34
    a put:x    #1@10 4..5  done until:34
    a release  #1@10 6..9  done
    b get      #2@20 8..9  =x

an unknown write counts
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  done
    a put:y    #1@10 4..5  unknown
    a release  #1@10 6..7  done
    b create   #2    8..9  held@20
    b get      #2@20 10..11 =y
    b get      #2@20 12..13 =y

an unknown write does not count
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  done
    a put:y    #1@10 4..?  unknown
    a release  #1@10 6..7  done
    b create   #2    8..9  held@20
    b get      #2@20 10..11 =x
    b put:z    #2@20 12..13 done
    b get      #2@20 14..15 =z

an unknown write lands after a read of its own section
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  done
    a put:y    #1@10 4..5  unknown
    a get      #1@10 6..7  =x
    a get      #1@10 8..9  =y
    a get      #1@10 10..11 =y

an unknown write of an unordered client lands after a later one
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  unknown
    a put:y    #1@10 4..5  done
    a get      #1@10 6..7  =y
    a get      #1@10 8..9  =x

nobody read what became of an unknown write until two holders later
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  unknown
    a release  #1@10 4..5  done
    b create   #2    6..7  held@20
    b release  #2@20 8..9  done
    c create   #3    10..11 held@30 =x

an expired holder is told late
    a create   #1    0..1  held@10 until:10
    a put:x    #1@10 2..3  done until:12
    b create   #2    4..5  done until:30
    b acquire  #2    6..14 held@20 =x until:36
    a put:y    #1@10 15..16 refused:over
    b get      #2@20 17..18 =x

an acknowledgement after the end promises nothing
    a create   #1    0..1  held@10 until:10
    a put:x    #1@10 2..3  done until:12
    b create   #2    4..5  done until:60
    b acquire  #2    6..14 held@20 until:60
    a put:y    #1@10 13..15 done until:14
    a get      #1@10 16..17 =y
    b get      #2@20 18..19 =x

what lands between the end and the sync may count
    a create   #1    0..1  held@10 until:10
    a put:x    #1@10 2..3  done until:12
    b create   #2    4..5  done until:60
    a put:y    #1@10 12..15 done until:14
    b acquire  #2    6..14 held@20 =y until:60
    b get      #2@20 18..19 =y

a take over supersedes a grant
    a create   #1    0..1  held@10 until:30
    a put:x    #1@10 2..3  done until:32
    a put:y    #1@10 4..9  unknown
    a put:y    #1@10 10..11 refused:superseded
    a acquire  #1    12..13 held@20 until:42
    a get      #1@20 14..15 =y
    a put:z    #1@20 16..17 done until:46
    a release  #1@20 18..19 done
    b create   #2    20..21 held@30 =z until:50

a late answer of the old home
    a create   #1    0..1  held@10 until:60
    a put:x    #1@10 2..9  done until:60
    a acquire  #1    3..5  held@20 until:60
    a get      #1@20 6..7  =x
    a get      #1@10 3..10 =-

an operator ends a holder that is sure of it
    a create   #1    0..1  held@10 until:90
    b create   #2    2..3  done until:90
    o force    #1    4..6  done
    b acquire  #2    3..5  held@20 until:90
    a put:x    #1@10 5..6  done until:90
    b get      #2@20 7..8  =-
    a get      #1@10 9..10 refused:over

a session that is closed takes its entries along
    a create   #1    0..1  held@10 until:90 in:s
    a put:x    #1@10 2..3  done until:92
    b create   #2    4..5  done until:90 in:t
    a close:s  #     6..9  done
    b acquire  #2    7..8  held@20 =x until:97

creates at one time come in any order
    a create   #2    0..5  done until:90
    b create   #1    1..4  held@10 until:90
    b release  #1@10 6..7  done
    a acquire  #2    8..9  held@20 until:90

a repeated create finds the entry of its first try
    a create:one  #     0..1  unknown
    b create      #2    2..3  done until:90
    a create:one  #1    4..5  held@10 until:90
    a release     #1@10 6..7  done
    b acquire     #2    8..9  held@20 until:90

a waiter that left is passed over
    a create   #1    0..1  held@10 until:90
    b create   #2    2..3  done until:90
    c create   #3    4..5  done until:90
    b release  #2    6..7  done
    a release  #1@10 8..9  done
    c acquire  #3    10..11 held@20 until:90

a waiter that went silent is passed over
    a create   #1    0..1  held@10 until:90
    b create   #2    2..3  done until:9
    c create   #3    4..5  done until:90
    a release  #1@10 6..7  done
    c acquire  #3    8..11 held@20 until:90
    b acquire  #2    20..21 refused:over

a put that was refused never shows
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  done
    a put:y    #1@10 4..5  refused
    a get      #1@10 6..7  =x

a read beside a write sees either
    a create   #1    0..1  held@10
    a put:x    #1@10 2..3  done
    a put:y    #1@10 4..9  done
    a get      #1@10 5..6  =y
    a get      #1@10 5..8  =x
    a get      #1@10 10..11 =y

writes at one time come in any order
    a create   #1    0..1  held@10
    a put:x    #1@10 2..6  done
    a put:y    #1@10 3..5  done
    a release  #1@10 7..8  done
    b create   #2    9..10 held@20 =x

a release carries a last put
    a create     #1    0..1  held@10
    a release:x  #1@10 2..3  unknown
    a release    #1@10 4..5  done
    b create     #2    6..7  held@20
    b get        #2@20 8..9  =x
    b release:y  #2@20 10..11 done
    c create     #3    12..13 held@30 =y

a release that came before may have carried its put
    a create     #1    0..1  held@10
    a release:x  #1@10 2..3  unknown
    a release:x  #1@10 4..5  unknown:released
    b create     #2    6..7  held@20 =x

a release whose answer is not known may not be done
    a create     #1    0..1  held@10
    a release    #1@10 2..3  unknown
    a put:x      #1@10 4..5  done
    a release    #1@10 6..7  done
    b create     #2    8..9  held@20 =x

keys have nothing to do with each other
    a create   k#1    0..1  held@10 until:90
    b create   l#1    2..3  held@5 until:90
    a put:x    k#1@10 4..5  done until:90
    b get      l#1@5  6..7  =-

a belief that lapsed is not counted before it is renewed
    a create   #1    0..1  held@10 until:5
    a get      #1@10 2..9  =- until:7
    b create   #2    3..8  held@20 until:90
    b get      #2@20 10..11 =-
";
