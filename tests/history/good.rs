//! Histories that a service which keeps its promises may give.

use super::written::good;

#[test]
fn nothing_happened() {
    good("");
}

#[test]
fn one_after_the_other() {
    good(
        "a create   #1    0..1  held@10 until:30
         a get      #1@10 2..3  =-
         a put:x    #1@10 4..5  done until:35
         a get      #1@10 6..7  =x
         a release  #1@10 8..9  done
         b create   #2    10..11 held@20 =x until:41
         b put:-    #2@20 12..13 done
         b get      #2@20 14..15 =-
         b release  #2@20 16..17 done",
    );
}

#[test]
fn a_waiter_is_granted_the_lock_before_the_release_is_answered() {
    good(
        "a create   #1    0..1  held@10 until:30
         b create   #2    2..3  done until:30
         b acquire  #2    4..7  held@20 until:34
         a put:x    #1@10 4..5  done until:34
         a release  #1@10 6..9  done
         b get      #2@20 8..9  =x",
    );
}

#[test]
fn an_unknown_write_counts() {
    good(
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  done
         a put:y    #1@10 4..5  unknown
         a release  #1@10 6..7  done
         b create   #2    8..9  held@20
         b get      #2@20 10..11 =y
         b get      #2@20 12..13 =y",
    );
}

#[test]
fn an_unknown_write_does_not_count() {
    good(
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  done
         a put:y    #1@10 4..?  unknown
         a release  #1@10 6..7  done
         b create   #2    8..9  held@20
         b get      #2@20 10..11 =x
         b put:z    #2@20 12..13 done
         b get      #2@20 14..15 =z",
    );
}

#[test]
fn an_unknown_write_lands_after_a_read_of_its_own_section() {
    good(
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  done
         a put:y    #1@10 4..5  unknown
         a get      #1@10 6..7  =x
         a get      #1@10 8..9  =y
         a get      #1@10 10..11 =y",
    );
}

#[test]
fn an_unknown_write_of_an_unordered_client_lands_after_a_later_one() {
    good(
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  unknown
         a put:y    #1@10 4..5  done
         a get      #1@10 6..7  =y
         a get      #1@10 8..9  =x",
    );
}

#[test]
fn nobody_read_what_became_of_an_unknown_write_until_two_holders_later() {
    good(
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  unknown
         a release  #1@10 4..5  done
         b create   #2    6..7  held@20
         b release  #2@20 8..9  done
         c create   #3    10..11 held@30 =x",
    );
}

#[test]
fn an_expired_holder_is_told_late() {
    good(
        "a create   #1    0..1  held@10 until:10
         a put:x    #1@10 2..3  done until:12
         b create   #2    4..5  done until:30
         b acquire  #2    6..14 held@20 =x until:36
         a put:y    #1@10 15..16 refused:over
         b get      #2@20 17..18 =x",
    );
}

#[test]
fn an_acknowledgement_after_the_end_promises_nothing() {
    good(
        "a create   #1    0..1  held@10 until:10
         a put:x    #1@10 2..3  done until:12
         b create   #2    4..5  done until:60
         b acquire  #2    6..14 held@20 until:60
         a put:y    #1@10 13..15 done until:14
         a get      #1@10 16..17 =y
         b get      #2@20 18..19 =x",
    );
}

#[test]
fn what_lands_between_the_end_and_the_sync_may_count() {
    good(
        "a create   #1    0..1  held@10 until:10
         a put:x    #1@10 2..3  done until:12
         b create   #2    4..5  done until:60
         a put:y    #1@10 12..15 done until:14
         b acquire  #2    6..14 held@20 =y until:60
         b get      #2@20 18..19 =y",
    );
}

#[test]
fn a_take_over_supersedes_a_grant() {
    good(
        "a create   #1    0..1  held@10 until:30
         a put:x    #1@10 2..3  done until:32
         a put:y    #1@10 4..9  unknown
         a put:y    #1@10 10..11 refused:superseded
         a acquire  #1    12..13 held@20 until:42
         a get      #1@20 14..15 =y
         a put:z    #1@20 16..17 done until:46
         a release  #1@20 18..19 done
         b create   #2    20..21 held@30 =z until:50",
    );
}

#[test]
fn a_late_answer_of_the_old_home() {
    good(
        "a create   #1    0..1  held@10 until:60
         a put:x    #1@10 2..9  done until:60
         a acquire  #1    3..5  held@20 until:60
         a get      #1@20 6..7  =x
         a get      #1@10 3..10 =-",
    );
}

#[test]
fn an_operator_ends_a_holder_that_is_sure_of_it() {
    good(
        "a create   #1    0..1  held@10 until:90
         b create   #2    2..3  done until:90
         o force    #1    4..6  done
         b acquire  #2    3..5  held@20 until:90
         a put:x    #1@10 5..6  done until:90
         b get      #2@20 7..8  =-
         a get      #1@10 9..10 refused:over",
    );
}

#[test]
fn a_session_that_is_closed_takes_its_entries_along() {
    good(
        "a create   #1    0..1  held@10 until:90 in:s
         a put:x    #1@10 2..3  done until:92
         b create   #2    4..5  done until:90 in:t
         a close:s  #     6..9  done
         b acquire  #2    7..8  held@20 =x until:97",
    );
}

#[test]
fn creates_at_one_time_come_in_any_order() {
    good(
        "a create   #2    0..5  done until:90
         b create   #1    1..4  held@10 until:90
         b release  #1@10 6..7  done
         a acquire  #2    8..9  held@20 until:90",
    );
}

#[test]
fn a_repeated_create_finds_the_entry_of_its_first_try() {
    good(
        "a create:one  #     0..1  unknown
         b create      #2    2..3  done until:90
         a create:one  #1    4..5  held@10 until:90
         a release     #1@10 6..7  done
         b acquire     #2    8..9  held@20 until:90",
    );
}

#[test]
fn a_waiter_that_left_is_passed_over() {
    good(
        "a create   #1    0..1  held@10 until:90
         b create   #2    2..3  done until:90
         c create   #3    4..5  done until:90
         b release  #2    6..7  done
         a release  #1@10 8..9  done
         c acquire  #3    10..11 held@20 until:90",
    );
}

#[test]
fn a_waiter_that_went_silent_is_passed_over() {
    good(
        "a create   #1    0..1  held@10 until:90
         b create   #2    2..3  done until:9
         c create   #3    4..5  done until:90
         a release  #1@10 6..7  done
         c acquire  #3    8..11 held@20 until:90
         b acquire  #2    20..21 refused:over",
    );
}

#[test]
fn a_put_that_was_refused_never_shows() {
    good(
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  done
         a put:y    #1@10 4..5  refused
         a get      #1@10 6..7  =x",
    );
}

#[test]
fn a_read_beside_a_write_sees_either() {
    good(
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  done
         a put:y    #1@10 4..9  done
         a get      #1@10 5..6  =y
         a get      #1@10 5..8  =x
         a get      #1@10 10..11 =y",
    );
}

#[test]
fn writes_at_one_time_come_in_any_order() {
    good(
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..6  done
         a put:y    #1@10 3..5  done
         a release  #1@10 7..8  done
         b create   #2    9..10 held@20 =x",
    );
}

#[test]
fn a_release_carries_a_last_put() {
    good(
        "a create     #1    0..1  held@10
         a release:x  #1@10 2..3  unknown
         a release    #1@10 4..5  done
         b create     #2    6..7  held@20
         b get        #2@20 8..9  =x
         b release:y  #2@20 10..11 done
         c create     #3    12..13 held@30 =y",
    );
}

#[test]
fn a_release_that_came_before_may_have_carried_its_put() {
    good(
        "a create     #1    0..1  held@10
         a release:x  #1@10 2..3  unknown
         a release:x  #1@10 4..5  unknown:released
         b create     #2    6..7  held@20 =x",
    );
}

#[test]
fn a_release_whose_answer_is_not_known_may_not_be_done() {
    good(
        "a create     #1    0..1  held@10
         a release    #1@10 2..3  unknown
         a put:x      #1@10 4..5  done
         a release    #1@10 6..7  done
         b create     #2    8..9  held@20 =x",
    );
}

#[test]
fn keys_have_nothing_to_do_with_each_other() {
    good(
        "a create   k#1    0..1  held@10 until:90
         b create   l#1    2..3  held@5 until:90
         a put:x    k#1@10 4..5  done until:90
         b get      l#1@5  6..7  =-",
    );
}

#[test]
fn a_belief_that_lapsed_is_not_counted_before_it_is_renewed() {
    good(
        "a create   #1    0..1  held@10 until:5
         a get      #1@10 2..9  =- until:7
         b create   #2    3..8  held@20 until:90
         b get      #2@20 10..11 =-",
    );
}
