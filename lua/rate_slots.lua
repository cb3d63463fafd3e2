-- Which of a client's states belongs to which rate, where there is room for several: each is marked with the period
-- that it was last used for. Places are numbered from 1; 0 is nowhere.
local function places_of_rates()
    -- The first place that is not taken and whose mark is `mark`; without one, any place that is marked.
    local function first_place(places, marks, taken, mark)
        for place = 1, places do
            local found = marks[place]
            if not taken[place] and (found == mark or (not mark and found ~= 0)) then
                return place
            end
        end
        return 0
    end

    -- Rates whose marks are equal have their places in order, so that they find them again once those are marked.
    local function sort_equals(policy, to, from)
        for i = 1, policy.rates do
            for j = i + 1, policy.rates do
                if policy[i].place_mark == policy[j].place_mark and to[i] > to[j] then
                    to[i], to[j] = to[j], to[i]
                    from[i], from[j] = from[j], from[i]
                end
            end
        end
    end

    -- Sets for each rate the place where its state is to be written and the one from which it is read, which differ
    -- only if the first is free. A rate whose period is new begins with what another period left that is no longer
    -- among the rates; it takes a free place for that, if there is one, so that the other finds its state again.
    local function find_places(policy, places, marks, to, from)
        local written, read = {}, {}
        for i = 1, policy.rates do
            local place = first_place(places, marks, written, policy[i].place_mark)
            to[i], from[i] = place, place
            written[place], read[place] = true, true
        end
        for i = 1, policy.rates do
            if to[i] == 0 then
                local left = first_place(places, marks, read)
                local place = first_place(places, marks, written, 0)
                if place == 0 then
                    place = left ~= 0 and left or first_place(places, marks, written)
                    left = place
                end
                to[i], from[i] = place, left ~= 0 and left or place
                written[place], read[place], read[from[i]] = true, true, true
            end
        end
        sort_equals(policy, to, from)
    end

    -- Moves the states of `count` places into the room that `policy` has: those that its rates need come first, then
    -- the others for as long as there is room.
    local function convert_places(policy, count, places, marks)
        local old, old_marks = {}, {}
        for place = 1, 8 do
            old[place] = place <= count and places[place]
            old_marks[place] = place <= count and marks[place] or 0
        end
        local from = {}
        find_places(policy, 8, old_marks, {}, from)
        local copied = {}
        local used = 0
        local function copy(place)
            if place <= count and used < policy.places and not copied[place] then
                used = used + 1
                places[used], marks[used] = old[place], old_marks[place]
                copied[place] = true
            end
        end
        for i = 1, policy.rates do
            copy(from[i])
        end
        for place = 1, count do
            copy(place)
        end
        for place = used + 1, policy.places do
            places[place], marks[place] = false, 0
        end
    end

    return find_places, convert_places
end
