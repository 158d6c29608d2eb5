/* SPDX-License-Identifier: BSD-3-Clause
 *
 * join.pml - the handshake of docs/wire-protocol.md, "One link for a pair", with an intruder.
 *
 * P and X are honest and dial each other and M, each once, in any order. M dials P and X once
 * each. It may relay and replay every nonce, question, and answer that it got on a link that ends
 * at it, make those for which it knows the nonces, and claim any incarnation. It does not read
 * links between P and X: docs/wire-protocol.md promises nothing against that.
 *
 * Checked in every reachable state:
 *   safety     operations posted to the process behind a dialled address are moved only to a link
 *              that this same process has dialled;
 *   agreement  P and X do not both use the links that they dialled to each other.
 *
 * A digest is modelled by what goes into it: an answer is the pair of links (of, over), and equals
 * another one if the secrets of both are equal. A secret is the nonce and the ends of a connection.
 * No two connections have the same ends, so with them secrets are equal only of the same link.
 *
 * Variants, each of which has to be found broken:
 *   NO_ENDS            a secret is the nonce alone
 *   NO_OVER            questions and answers prove nothing about the link that they come over
 *   OLD_PROOF          both: the name of a nonce is all that is said (protocol version 2)
 *   NO_QUESTION_PROOF  a question names a link and proves nothing (agreement breaks)
 *   ALWAYS_YIELDS      the lesser incarnation gives way also where it has not asked (agreement)
 */
#ifdef OLD_PROOF
#define NO_ENDS
#define NO_OVER
#endif

#define P 0
#define X 1
#define M 2

#define X_M 0 /* the link that X dials to M, and so on */
#define P_M 1
#define X_P 2
#define P_X 3
#define M_P 4
#define M_X 5
#define LINKS 6

#define FROM(l) ((l) == X_M || (l) == X_P -> X : ((l) == P_M || (l) == P_X -> P : M))
#define TO(l) ((l) == X_M || (l) == P_M -> M : ((l) == P_X || (l) == M_X -> X : P))
#define NOBODY 7

mtype = {IDLE, SAID, ASKING, UP, JOINED}; /* a dialler's state: SAID after its HELLO */
mtype dialler[LINKS];
bit accepted[LINKS], closed[LINKS], kept[LINKS];
byte nonce[LINKS];
byte dialler_says[LINKS], accepter_says[LINKS]; /* incarnations: P < X < M */
byte question[LINKS];                           /* a bit for each link that it names */
bit answered[LINKS];
byte answer[LINKS]; /* the link that it is about; LINKS: none */

#ifdef NO_ENDS
#define SAME(a, b) (nonce[a] == nonce[b])
#else
#define SAME(a, b) ((a) == (b))
#endif
#ifdef NO_OVER
#define OVER(a, b) true
#else
#define OVER(a, b) SAME(a, b)
#endif
#if defined(NO_QUESTION_PROOF) || defined(NO_OVER)
#define QUESTION_OVER(a, b) true
#else
#define QUESTION_OVER(a, b) SAME(a, b)
#endif

#define HAS(mask, l) ((((mask) >> (l)) & 1) == 1)
#define WITH_M(l, n) (dialler[l] != IDLE && nonce[l] == (n))
/* M knows a nonce that came over a link of its own. */
#define KNOWS(n) (WITH_M(X_M, n) || WITH_M(P_M, n) || WITH_M(M_P, n) || WITH_M(M_X, n))

byte i; /* scratch, 0 between steps */
bit can;

/* The links that an honest dialler asks for: accepted, with the same incarnation claimed. */
inline candidates(l)
{
    i = 0;
    do
    :: i < LINKS ->
        if
        :: TO(i) == FROM(l) && accepted[i] && !closed[i] && dialler_says[i] == accepter_says[l] ->
            question[l] = question[l] | (1 << i)
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

/* The lesser incarnation's link goes, provided that it has asked for the other one, or will. */
#ifdef ALWAYS_YIELDS
#define NOT_NAMED(d, l) false
#else
#define NOT_NAMED(d, l) (!HAS(question[d], l))
#endif

/* An honest process has dialled link d and is asked for it over link l. */
inline keep(d, l)
{
    if
    :: dialler[d] == UP || TO(l) > dialler_says[l] || (dialler[d] == ASKING && NOT_NAMED(d, l)) ->
        answer[l] = d;
        if
        :: dialler[d] == ASKING -> dialler[d] = UP
        :: dialler[d] == SAID -> kept[d] = 1
        :: else
        fi
    :: else
    fi
}

#define LIVE(d) (dialler[d] == SAID || dialler[d] == ASKING || dialler[d] == UP)

/* M has an answer about link k that fits one expected over link l: made, or got over link m. */
#define GOT_ANSWER(k, l, m) (answered[m] && answer[m] < LINKS && SAME(answer[m], k) && OVER(m, l))
#define HAS_ANSWER(k, l)                                                                           \
    ((KNOWS(nonce[k]) && KNOWS(nonce[l])) || GOT_ANSWER(k, l, M_P) || GOT_ANSWER(k, l, M_X))

/* M can ask for link d over link l: made, or got over link m. */
inline question_at_hand(d, l)
{
    can = KNOWS(nonce[d]) && KNOWS(nonce[l]);
    i = 0;
    do
    :: i < LINKS ->
        if
        :: (HAS(question[X_M], i) && SAME(i, d) && QUESTION_OVER(X_M, l)) ||
           (HAS(question[P_M], i) && SAME(i, d) && QUESTION_OVER(P_M, l)) -> can = 1
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

inline dial_honestly(l)
{
    atomic {
        dialler[l] == IDLE;
        dialler[l] = SAID;
        nonce[l] = l + 1;
        dialler_says[l] = FROM(l)
    }
}

/* M decides when a HELLO or an answer of its own arrives: sending and taking are one step. */
inline dial_as_m(l)
{
    atomic {
        dialler[l] == IDLE;
        if
        :: nonce[l] = l + 1
        :: dialler[X_M] != IDLE -> nonce[l] = nonce[X_M]
        :: dialler[P_M] != IDLE -> nonce[l] = nonce[P_M]
        fi;
        if
        :: dialler_says[l] = P
        :: dialler_says[l] = X
        :: dialler_says[l] = M
        fi;
        dialler[l] = SAID;
        accepted[l] = 1
    }
}

inline accept(l)
{
    d_step {
        dialler[l] != IDLE && !accepted[l];
        accepted[l] = 1;
        accepter_says[l] = TO(l)
    }
}

inline reply_taken(l)
{
    candidates(l);
    if
    :: question[l] == 0 || kept[l] -> question[l] = 0; dialler[l] = UP
    :: else -> dialler[l] = ASKING
    fi
}

inline reply_as_m(l)
{
    atomic {
        dialler[l] == SAID;
        accepted[l] = 1;
        if
        :: accepter_says[l] = P
        :: accepter_says[l] = X
        :: accepter_says[l] = M
        fi;
        reply_taken(l)
    }
}

inline take_reply(l)
{
    d_step { dialler[l] == SAID && accepted[l]; reply_taken(l) }
}

/* P or X takes a question of the other. It has dialled two links: to the other, and to M. */
inline take_question(l, first, second)
{
    d_step {
        question[l] != 0 && !answered[l];
        answered[l] = 1;
        answer[l] = LINKS;
        i = 0;
        do
        :: i < LINKS && HAS(question[l], i) && LIVE(first) && SAME(i, first) && answer[l] == LINKS ->
            keep(first, l); i++
        :: i < LINKS && HAS(question[l], i) && LIVE(second) && SAME(i, second) &&
           answer[l] == LINKS && !(LIVE(first) && SAME(i, first)) -> keep(second, l); i++
        :: i < LINKS && !(HAS(question[l], i) && ((LIVE(first) && SAME(i, first)) ||
           (LIVE(second) && SAME(i, second))) && answer[l] == LINKS) -> i++
        :: i >= LINKS -> break
        od;
        i = 0
    }
}

/* M asks P or X, once over each link, for a link that this one has dialled. */
inline ask_as_m(l, d)
{
    d_step {
        accepted[l] && !answered[l] && LIVE(d); /* accepted: by P or X */
        question_at_hand(d, l);
        if
        :: can -> answered[l] = 1; answer[l] = LINKS; keep(d, l)
        :: else
        fi;
        can = 0
    }
}

inline answer_taken(l)
{
    dialler[l] = UP;
    i = 0;
    do
    :: i < LINKS ->
        if
        :: dialler[l] == UP && answer[l] < LINKS && HAS(question[l], i) && accepted[i] &&
           !closed[i] && SAME(i, answer[l]) ->
            dialler[l] = JOINED;
            assert(FROM(i) == TO(l)) /* safety */
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

inline take_answer(l)
{
    d_step { dialler[l] == ASKING && answered[l]; answer_taken(l) }
}

inline answer_as_m(l, k)
{
    d_step {
        dialler[l] == ASKING && HAS(question[l], k) && HAS_ANSWER(k, l);
        answer[l] = k;
        answer_taken(l);
        answer[l] = LINKS
    }
}

inline deny_as_m(l)
{
    d_step { dialler[l] == ASKING; dialler[l] = UP }
}

inline take_end(l)
{
    d_step { dialler[l] == JOINED && !closed[l]; closed[l] = 1 }
}

active proctype all()
{
    d_step {
        do
        :: i < LINKS -> dialler[i] = IDLE; accepter_says[i] = NOBODY; dialler_says[i] = NOBODY;
           answer[i] = LINKS; i++
        :: else -> break
        od;
        i = 0
    }
end:
    do
    :: dial_honestly(X_M)
    :: dial_honestly(P_M)
    :: dial_honestly(X_P)
    :: dial_honestly(P_X)
    :: dial_as_m(M_P)
    :: dial_as_m(M_X)
    :: accept(X_P)
    :: accept(P_X)
    :: take_reply(X_P)
    :: take_reply(P_X)
    :: reply_as_m(X_M)
    :: reply_as_m(P_M)
    :: take_question(X_P, P_X, P_M)
    :: take_question(P_X, X_P, X_M)
    :: ask_as_m(M_P, P_X)
    :: ask_as_m(M_P, P_M)
    :: ask_as_m(M_X, X_P)
    :: ask_as_m(M_X, X_M)
    :: take_answer(X_P)
    :: take_answer(P_X)
    :: answer_as_m(X_M, P_X)
    :: answer_as_m(X_M, M_X)
    :: answer_as_m(P_M, X_P)
    :: answer_as_m(P_M, M_P)
    :: deny_as_m(X_M)
    :: deny_as_m(P_M)
    :: take_end(X_P)
    :: take_end(P_X)
#ifndef ONLY_SAFETY
    :: atomic { dialler[X_P] == UP && dialler[P_X] == UP -> assert(false) /* agreement */ }
#endif
    od
}
